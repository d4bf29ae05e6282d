"""What the report says of an agent's use of its LLM: what was seen on the way, and where its own word differs."""

from a2rl.records import ExecuteRecord, Usage
from a2rl.relay.record import LlmUse

UNSEEN = "Its requests to the LLM could not be seen on the way: tokens are those that the agent system itself reports."
MORE_BY = 1.05
"""By so much more tokens were seen than reported is worth a word."""


def seen_figures(seen: LlmUse | None) -> list[tuple[str, str]]:
    """For the table."""
    if seen is None:
        return []
    counts = {
        "requests": seen.requests,
        "tokens in": seen.prompt_tokens,
        "tokens out": seen.completion_tokens,
        "refused by a2rl": seen.refused,
        "answered with an error": seen.failed,
        "tokens estimated": seen.estimated,
    }
    figures = [(name, f"{value:,}") for name, value in counts.items() if value or name.startswith(("req", "tokens "))]
    models = [
        (name, f"{use.requests:,} requests, {use.prompt_tokens:,} tokens in, {use.completion_tokens:,} out")
        for name, use in seen.models.items()
    ]
    return [*figures, *models]


def remarks(executed: ExecuteRecord | None, driver: str | None, calls_llm: bool) -> list[str]:
    """What a reader must know, a sentence each."""
    if executed is None or not calls_llm:
        return []
    seen = executed.seen
    if seen is None:
        return [UNSEEN]
    told = []
    if others := seen.other_models(driver):
        told.append(f"It also asked other models than its driver {driver}: {', '.join(others)}.")
    told += [f"Asked for {asked}, the provider answered with {answered}." for asked, answered in seen.answered.items()]
    if seen.server_tools:
        tools = ", ".join(f"{name} ({count:,} requests)" for name, count in seen.server_tools.items())
        told.append(f"It had tools that run at the provider, where no sandbox is: {tools}.")
    if (reported := _reported(executed.usage)) is not None and seen.tokens > MORE_BY * reported:
        told.append(f"It reports {reported:,} tokens; {seen.tokens:,} were seen.")
    return told


def _reported(usage: Usage | None) -> int | None:
    if usage is None or (usage.prompt_tokens is None and usage.completion_tokens is None):
        return None
    return (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
