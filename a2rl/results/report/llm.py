"""The report's section on an agent's use of its LLM: what the relay measured, and where the agent's report differs."""

from a2rl.run.records import ExecuteRecord, LlmUse, Usage

UNSEEN = "Its requests to the LLM could not be measured: the token counts are those that the agent system reports."
WORTH_A_REMARK = 1.05
"""The report mentions a ratio of measured to reported tokens that is larger than this."""


def seen_figures(seen: LlmUse | None) -> list[tuple[str, str]]:
    """Returns the rows of the table: names and values."""
    if seen is None:
        return []
    counts = {
        "requests": seen.requests,
        "tokens in": seen.prompt_tokens,
        "of which cached": seen.cached_tokens,
        "tokens out": seen.completion_tokens,
        "refused by a2rl": seen.refused,
        "answered with an error": seen.failed,
        "tokens estimated": seen.estimated,
    }
    figures = [(name, f"{value:,}") for name, value in counts.items() if value or name.startswith(("req", "tokens "))]
    figures.append(("cost at list prices", dollars(seen.cost_usd)))
    models = [
        (
            name,
            f"{use.requests:,} requests, {use.prompt_tokens:,} tokens in, {use.completion_tokens:,} out, "
            f"{dollars(use.cost_usd)}",
        )
        for name, use in seen.models.items()
    ]
    return [*figures, *models]


def dollars(cost: float | None) -> str:
    """Returns a cost in words."""
    return "price unknown" if cost is None else f"${cost:.4f}"


def remarks(executed: ExecuteRecord | None, driver: str | None, calls_llm: bool) -> list[str]:
    """Returns the remarks that a reader must know, one sentence each."""
    if executed is None or not calls_llm:
        return []
    seen = executed.seen
    if seen is None:
        return [UNSEEN]
    sentences = []
    if others := seen.other_models(driver):
        sentences.append(f"It also used models other than its driver {driver}: {', '.join(others)}.")
    for requested, answered in seen.answered.items():
        sentences.append(f"It requested {requested}, but the provider answered with {answered}.")
    if seen.server_tools:
        tools = ", ".join(f"{name} ({count:,} requests)" for name, count in seen.server_tools.items())
        sentences.append(f"It asked for more than text of the provider, outside of the sandbox: {tools}.")
    reported = _reported(executed.usage)
    if reported is not None and seen.tokens > WORTH_A_REMARK * reported:
        sentences.append(f"It reports {reported:,} tokens, but {seen.tokens:,} were measured.")
    return sentences


def _reported(usage: Usage | None) -> int | None:
    if usage is None or (usage.prompt_tokens is None and usage.completion_tokens is None):
        return None
    return (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
