"""How a row of the data is asked, the same for the grader and for agents, who get this file with `items.py`.

a2rl/task_api/rows.py explains what `items.py` has.
"""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
Chat = list[dict[str, str]]


def is_interactive(items: Any) -> bool:
    """Whether the rows are episodes of an environment, and not questions with one answer."""
    return hasattr(items, "Environment")


def asked(items: Any, row: Row, chat: bool) -> str | Chat:
    """Returns what the model is asked: a text, or a chat for a model with a chat template."""
    prompt: str | Chat = items.prompt(row)
    if not (isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(turn, dict) for turn in prompt))):
        raise TypeError(f"prompt(row) must return a text or a chat, and not {prompt!r}")
    if chat:
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return prompt if isinstance(prompt, str) else "\n\n".join(turn["content"] for turn in prompt) + "\n"


def stops(items: Any) -> tuple[str, ...]:
    """Returns the texts before which an answer, or a turn, ends."""
    found = ("\n",) if is_interactive(items) else getattr(items, "STOP", ())
    return (found,) if isinstance(found, str) else tuple(found)


def gold(items: Any, row: Row) -> str | None:
    """Returns the answer of a perfect model, for an episode one turn a line; None where nobody knows it."""
    found = items.gold(row) if hasattr(items, "gold") else row.get("answer")
    return None if found is None else str(found)
