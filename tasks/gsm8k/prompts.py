r"""GSM8K's prompts: what the grader asks, and what it takes for a solution. The agent gets this file as it is.

The prompt is the reference's (opencompass gsm8k_gen_1d7fe4): `Question: ...\nLet's think step by step\nAnswer:`, with
four worked examples in the full variant. A model with a chat template gets examples and question as turns of a chat.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""A problem, with its `question` and `answer`."""
Chat = list[dict[str, str]]


def prompt(question: str, shots: Sequence[Row], chat: bool) -> str | Chat:
    """Returns the model's prompt: a text, or a chat for a model with a chat template."""
    if chat:
        turns: Chat = []
        for shot in shots:
            turns += [_message("user", _asked(shot["question"])), _message("assistant", solution(shot))]
        return [*turns, _message("user", _asked(question))]
    worked = "".join(f"{_asked(shot['question'])} {solution(shot)}\n\n" for shot in shots)
    return worked + _asked(question)


def solution(row: Row) -> str:
    """Returns the worked solution of a problem, without the data's calculator annotations."""
    return re.sub(r"<<[^<>]*>>", "", row["answer"])


def shots_that_fit(
    shots: Sequence[Row], questions: Sequence[str], chat: bool, room_after: Callable[[Any], int], max_new_tokens: int
) -> Sequence[Row]:
    """Returns the first shots that leave room for the longest question and its answer.

    A truncated prompt would begin in the middle of an example. The models of the reference have room for all four.

    Args:
        shots: All of them.
        questions: What will be asked.
        chat: Whether the model has a chat template.
        room_after: Returns how many tokens of the model's context a prompt leaves free.
    """
    longest = max(questions, key=len, default="")
    for count in range(len(shots), 0, -1):
        if room_after(prompt(longest, shots[:count], chat)) >= max_new_tokens:
            return shots[:count]
    return ()


def _asked(question: str) -> str:
    return f"Question: {question}\nLet's think step by step\nAnswer:"


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
