"""AlpacaEval's prompts: what the grader asks. The agent gets this file as it is."""

STOP = "### Instruction:"
"""Where the grader ends an answer."""


def prompt(instruction: str, chat: bool) -> str | list[dict[str, str]]:
    """Returns the model's prompt: a text, or a chat for a model with a chat template."""
    if chat:
        return [{"role": "user", "content": instruction}]
    return f"{STOP}\n{instruction}\n\n### Response:"
