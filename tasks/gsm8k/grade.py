r"""GSM8K's grader: greedy answers, right if the final number is.

The prompt is the reference's (opencompass gsm8k_gen_1d7fe4): `Question: ...\nLet's think step by step\nAnswer:`, with
four worked examples in the full variant. A model with a chat template gets examples and question as turns of a chat.

final_number.py says which number is the answer. The reference takes the last match of `-?\d+\.\d+|-?\d+`
(opencompass/datasets/gsm8k.py), which splits `1,000` at the comma and counts the right answer as wrong. With the option
`prompts: faithful`, examples, end of an answer and its number are the reference's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2rl.core.files import read_jsonl
from a2rl.sampling import Completion, Message, Prompt, Sampler, SamplingParams
from a2rl.scoring.score import ItemResult
from a2rl.task_api.contract import Limits, Options
from tasks.gsm8k import reference
from tasks.gsm8k.final_number import QUESTION, final_number

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
    shots = _shots_that_fit(sampler, _shots(hidden, faithful), list(by_id.values()), limits)
    prompts = [prompt(item.question, shots, chat=sampler.has_chat_template) for item in items]
    stop = () if faithful else (QUESTION,)
    completions = sampler.generate(prompts, SamplingParams(max_new_tokens=limits.max_new_tokens, stop=stop))
    return [_result(item, completion, faithful) for item, completion in zip(items, completions, strict=True)]


def _shots(hidden: Path, faithful: bool) -> Sequence[Mapping[str, Any]]:
    shots = read_jsonl(hidden / "shots.jsonl")
    if not faithful or not shots:
        return shots
    pairs = zip(shots, reference.SOLUTIONS, strict=True)
    return [{"question": shot["question"], "answer": solution} for shot, solution in pairs]


def _shots_that_fit(
    sampler: Sampler, shots: Sequence[Mapping[str, Any]], items: Sequence[Item], limits: Limits
) -> Sequence[Mapping[str, Any]]:
    """Returns the first shots that leave room for the longest question and its answer.

    A truncated prompt would begin in the middle of an example. The models of the reference have room for all four.
    """
    longest = max((item.question for item in items), key=len, default="")
    for count in range(len(shots), 0, -1):
        asked = prompt(longest, shots[:count], chat=sampler.has_chat_template)
        if sampler.room_after(asked) >= limits.max_new_tokens:
            return shots[:count]
    return ()


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


def prompt(question: str, shots: Sequence[Mapping[str, Any]], chat: bool) -> Prompt:
    """Returns the model's prompt."""
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
    return re.sub(r"<<[^<>]*>>", "", answer)  # without the data's calculator annotations


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
