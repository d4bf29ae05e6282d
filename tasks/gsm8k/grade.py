r"""GSM8K's grader: greedy answers, right if the final number is.

prompts.py says what the model is asked, and final_number.py which number is the answer.

With the option `prompts: faithful`, examples, end of an answer and its number are those of the reference, opencompass
(gsm8k_gen_1d7fe4 and datasets/gsm8k.py, Apache-2.0).
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from a2rl.core.files import read_jsonl
from a2rl.sampling import Sampler, SamplingParams, as_prompt
from a2rl.scoring.score import ItemResult
from a2rl.task_api.contract import Limits, Options
from a2rl.task_api.rows import RowsGrader, one_by_one
from tasks.gsm8k import prompts
from tasks.gsm8k.final_number import QUESTION, is_right, is_right_by_reference
from tasks.gsm8k.prompts import prompt, shots_that_fit, worked_examples

ANSWER_SHOWN = 200


def _grader_by(rule: Callable[[str, str], bool]) -> RowsGrader:
    return RowsGrader(prompts, one_by_one(lambda row, text: rule(text, row["answer"])), ANSWER_SHOWN)


_grader, _reference_grader = _grader_by(is_right), _grader_by(is_right_by_reference)
item_ids, score_outputs, gold_outputs = _grader.item_ids, _grader.score_outputs, _grader.gold_outputs


def grade(sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options) -> list[ItemResult]:
    """See `a2rl.task_api.contract.Grader`."""
    # Of all items: so a model sees an item with the same shots, whether it is graded in a sample, a half or the whole.
    rows, faithful, chat = _grader.rows(hidden), options.get("prompts") == "faithful", sampler.has_chat_template
    shots = shots_that_fit(
        worked_examples(read_jsonl(hidden / "shots.jsonl"), faithful),
        [row["question"] for row in rows.values()],
        chat,
        lambda asked: sampler.room_after(as_prompt(asked)),
        limits.max_new_tokens,
    )
    asked = [as_prompt(prompt(rows[each]["question"], shots, chat)) for each in ids]
    params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=() if faithful else (QUESTION,))
    grader = _reference_grader if faithful else _grader
    return grader.judged(ids, [rows[each] for each in ids], sampler.generate(asked, params))


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.KindsGrader`: the number of lines of the solution, about its number of steps."""
    return {each: f"{len(row['answer'].strip().splitlines()) - 1} steps" for each, row in _grader.rows(hidden).items()}
