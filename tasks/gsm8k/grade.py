r"""GSM8K's grader: greedy answers, right if the final number is.

The prompt is the reference's (opencompass gsm8k_gen_1d7fe4): `Question: ...\nLet's think step by step\nAnswer:`, with
four worked examples in the full variant. A model with a chat template gets examples and question as turns of a chat.

The final number is the one after `####`, or the last one where there is no `####`. The reference takes the last match
of `-?\d+\.\d+|-?\d+` (opencompass/datasets/gsm8k.py), which cuts `1,000` at the comma and counts the right answer as
wrong; ours reads thousands, so that every gold answer scores.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2rl.files import read_jsonl
from a2rl.sampling import Completion, Message, Prompt, Sampler, SamplingParams
from a2rl.score import ItemResult
from a2rl.task import Limits, Options

STOP = "Question:"
MARK = "####"
TOLERANCE = 1e-6
NUMBER = re.compile(
    r"(?<![\w.])-?(?:\$\s?)?-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"  # -5, $1,200.50, -$3
    r"|(?<![\w.])-?\$?\.\d+"  # .5
)
ANSWER_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Item:
    """A problem of the eval set."""

    id: str
    question: str
    answer: str


def items_of(hidden: Path) -> list[Item]:
    """The eval set; an item's id is its row number from 0."""
    rows = read_jsonl(hidden / "eval.jsonl")
    return [Item(str(index), row["question"], row["answer"]) for index, row in enumerate(rows)]


def item_ids(hidden: Path) -> list[str]:
    """See `a2rl.task.Grader`."""
    return [item.id for item in items_of(hidden)]


def grade(sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options) -> list[ItemResult]:
    """See `a2rl.task.Grader`."""
    by_id = {item.id: item for item in items_of(hidden)}
    items = [by_id[item_id] for item_id in ids]
    shots = _shots_that_fit(sampler, read_jsonl(hidden / "shots.jsonl"), items, limits)
    prompts = [prompt(item.question, shots, chat=sampler.has_chat_template) for item in items]
    completions = sampler.generate(prompts, SamplingParams(max_new_tokens=limits.max_new_tokens, stop=(STOP,)))
    return [_result(item, completion) for item, completion in zip(items, completions, strict=True)]


def _shots_that_fit(
    sampler: Sampler, shots: Sequence[Mapping[str, Any]], items: Sequence[Item], limits: Limits
) -> Sequence[Mapping[str, Any]]:
    """All of them, or for a short context the first few that leave room for the longest question and its answer.

    A prompt cut by tokens would begin in the middle of an example. The reference's models all have room for four.
    """
    longest = max((item.question for item in items), key=len, default="")
    for count in range(len(shots), 0, -1):
        asked = prompt(longest, shots[:count], chat=sampler.has_chat_template)
        if sampler.room_after(asked) >= limits.max_new_tokens:
            return shots[:count]
    return ()


def score_outputs(outputs: Mapping[str, str], hidden: Path, ids: Sequence[str]) -> list[ItemResult]:
    """See `a2rl.task.Grader`."""
    by_id = {item.id: item for item in items_of(hidden)}
    return [
        _result(by_id[item_id], Completion(outputs[item_id], "stop", 0, 0))
        if item_id in outputs
        else ItemResult(id=item_id, verdict="errored", reason="no completion was given")
        for item_id in ids
    ]


def gold_outputs(hidden: Path) -> dict[str, str]:
    """See `a2rl.task.Grader`."""
    return {item.id: item.answer for item in items_of(hidden)}


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task.KindsGrader`: the lines of the solution, which are about its steps."""
    return {item.id: f"{len(item.answer.strip().splitlines()) - 1} steps" for item in items_of(hidden)}


def prompt(question: str, shots: Sequence[Mapping[str, Any]], chat: bool) -> Prompt:
    """What the model is asked."""
    if chat:
        turns: list[Message] = []
        for shot in shots:
            turns += [Message("user", _ask(shot["question"])), Message("assistant", _shown(shot["answer"]))]
        return (*turns, Message("user", _ask(question)))
    worked = "".join(f"{_ask(shot['question'])} {_shown(shot['answer'])}\n\n" for shot in shots)
    return worked + _ask(question)


def _ask(question: str) -> str:
    return f"Question: {question}\nLet's think step by step\nAnswer:"


def _shown(answer: str) -> str:
    return re.sub(r"<<.*?>>", "", answer)  # the data's calculator marks are no language


def final_number(text: str) -> float | None:
    """The number that a solution ends on; None if it has none."""
    text = text.partition(STOP)[0]
    before, mark, after = text.partition(MARK)
    if mark:
        found = NUMBER.search(after.strip().partition("\n")[0])
        return _value(found.group()) if found else None
    numbers = NUMBER.findall(before)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> float:
    return float(re.sub(r"[,$\s]", "", number).replace("--", "-"))


def _result(item: Item, completion: Completion) -> ItemResult:
    got, gold = final_number(completion.text), final_number(item.answer)
    assert gold is not None
    right = got is not None and abs(got - gold) < TOLERANCE
    cut = completion.finish == "length"
    return ItemResult(
        id=item.id,
        verdict="correct" if right else "truncated" if cut else "wrong",
        value=float(right),
        answer=completion.text[-ANSWER_SHOWN:],
        tokens=completion.tokens,
    )
