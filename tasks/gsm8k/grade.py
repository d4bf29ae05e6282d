r"""GSM8K's grader: greedy answers, right if the final number is.

prompts.py says what the model is asked, and final_number.py which number is the answer. The reference takes the last
match of `-?\d+\.\d+|-?\d+` (opencompass/datasets/gsm8k.py), which splits `1,000` at the comma and counts the right
answer as wrong. With the option `prompts: faithful`, examples, end of an answer and its number are the reference's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2rl.core.files import read_jsonl
from a2rl.sampling import Completion, Sampler, SamplingParams, as_prompt
from a2rl.scoring.score import ItemResult
from a2rl.task_api.contract import Limits, Options
from tasks.gsm8k import reference
from tasks.gsm8k.final_number import QUESTION, final_number
from tasks.gsm8k.prompts import prompt, shots_that_fit

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
    """See `a2rl.task_api.contract.Grader`."""
    return [item.id for item in items_of(hidden)]


def grade(sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options) -> list[ItemResult]:
    """See `a2rl.task_api.contract.Grader`."""
    by_id = {item.id: item for item in items_of(hidden)}
    items = [by_id[item_id] for item_id in ids]
    # Of all items: so a model sees an item with the same shots, whether it is graded in a sample, a half or the whole.
    faithful = options.get("prompts") == "faithful"
    chat, questions = sampler.has_chat_template, [item.question for item in by_id.values()]
    shots = shots_that_fit(
        _shots(hidden, faithful),
        questions,
        chat,
        lambda asked: sampler.room_after(as_prompt(asked)),
        limits.max_new_tokens,
    )
    prompts = [as_prompt(prompt(item.question, shots, chat)) for item in items]
    stop = () if faithful else (QUESTION,)
    completions = sampler.generate(prompts, SamplingParams(max_new_tokens=limits.max_new_tokens, stop=stop))
    return [_result(item, completion, faithful) for item, completion in zip(items, completions, strict=True)]


def _shots(hidden: Path, faithful: bool) -> Sequence[Mapping[str, Any]]:
    shots = read_jsonl(hidden / "shots.jsonl")
    if not faithful or not shots:
        return shots
    pairs = zip(shots, reference.SOLUTIONS, strict=True)
    return [{"question": shot["question"], "answer": solution} for shot, solution in pairs]


def score_outputs(outputs: Mapping[str, str], hidden: Path, ids: Sequence[str]) -> list[ItemResult]:
    """See `a2rl.task_api.contract.Grader`."""
    by_id = {item.id: item for item in items_of(hidden)}
    return [
        _result(by_id[item_id], Completion(outputs[item_id], "stop", 0, 0))
        if item_id in outputs
        else ItemResult(id=item_id, verdict="errored", reason="no completion was given")
        for item_id in ids
    ]


def gold_outputs(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.Grader`."""
    return {item.id: item.answer for item in items_of(hidden)}


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.KindsGrader`: the number of lines of the solution, about its number of steps."""
    return {item.id: f"{len(item.answer.strip().splitlines()) - 1} steps" for item in items_of(hidden)}


def _is_right(item: Item, text: str) -> bool:
    got, gold = final_number(text), final_number(item.answer)
    assert gold is not None
    return got is not None and abs(got - gold) < reference.TOLERANCE


def _result(item: Item, completion: Completion, faithful: bool = False) -> ItemResult:
    text = completion.text
    right = reference.is_right(text, item.answer) if faithful else _is_right(item, text)
    cut = completion.finish == "length"
    return ItemResult(
        id=item.id,
        verdict="correct" if right else "truncated" if cut else "wrong",
        value=float(right),
        answer=completion.text[-ANSWER_SHOWN:],
        tokens=completion.tokens,
    )
