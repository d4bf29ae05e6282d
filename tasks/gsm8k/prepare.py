"""GSM8K's data: `train.jsonl` for the agent, `eval.jsonl` for the grader, the few-shot examples `shots.jsonl` for both.

The agent also gets what the model is asked (prompts.py), the rule that reads an answer (final_number.py and
model_text.py), and the modules for rollouts.

full: the 7,473 training and 1,319 test problems, from the hub at a pinned revision or from a local mirror with
`train.jsonl` and `test.jsonl`; both are verified by the same digests. mini: generated (see mini.py), without shots.
"""

from pathlib import Path
from typing import Any

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import digest_of, read_jsonl, write_jsonl
from a2rl.core.hub import download
from a2rl.handout import hand_out
from a2rl.task_api.contract import Variant
from tasks.gsm8k import final_number, mini, prompts
from tasks.gsm8k.task import TASK

MINI_TRAIN, MINI_SEED = 6000, 2604
pretraining_text, canonical = mini.pretraining_text, mini.canonical
SHOTS = (7364, 1708, 669, 6724)
"""Rows of the training data: the four problems of the reference's prompt. The reference has other solutions for them
(opencompass gsm8k_gen_1d7fe4.py); ours are the data's, so that the examples show the required format."""
DIGESTS = {
    "train": "419386f7702aae71e33d2ce12db2170fc893004227b082354443fa5873b378bb",
    "test": "b6c9d9547ec974d3c064a2f101ebf67e74257536d8c5e22a9758f2893a9e03a4",
}
"""Digests of the rows, independent of their file format."""


def prepare(variant: Variant, source: Path | None, visible: Path, hidden: Path) -> None:
    """See `a2rl.task_api.contract.Preparer`."""
    if variant == "mini":
        train = [_row(problem) for problem in mini.generate(MINI_TRAIN, MINI_SEED, "train")]
        test, shots = [_row(problem) for problem in _public_edition()], []
    else:
        train, test = (_real(split, source) for split in ("train", "test"))
        shots = [train[index] for index in SHOTS]
    write_jsonl(visible / "train.jsonl", train)
    write_jsonl(hidden / "eval.jsonl", test)
    for folder in (visible, hidden):
        write_jsonl(folder / "shots.jsonl", shots)
    hand_out(visible, prompts, final_number)


def draw(seed: str, hidden: Path) -> None:
    """See `a2rl.task_api.contract.DrawingPreparer`."""
    known = {mini.canonical(problem.question) for problem in _public_edition()}
    drawn = mini.generate(TASK.variant("mini").eval_items, seed, "eval", but=known)
    write_jsonl(hidden / "eval.jsonl", map(_row, drawn))
    write_jsonl(hidden / "shots.jsonl", [])


def _public_edition() -> list[mini.Problem]:
    return mini.generate(TASK.variant("mini").eval_items, MINI_SEED, "eval")


def _row(problem: mini.Problem) -> dict[str, Any]:
    return {"question": problem.question, "answer": problem.answer}


def _real(split: str, source: Path | None) -> list[dict[str, Any]]:
    if source is None:
        rows = _from_hub(split)
    else:
        path = source / f"{split}.jsonl"
        if not path.is_file():
            raise UsageError(f"{source} has no {split}.jsonl: a GSM8K mirror must have train.jsonl and test.jsonl")
        rows = read_jsonl(path)
    rows = [{"question": row["question"], "answer": row["answer"]} for row in rows]
    if digest_of(rows) != DIGESTS[split]:
        raise IntegrityError(
            f"the {split} data of GSM8K from {source or 'the hub'} differs from the published data: get a clean copy"
        )
    return rows


def _from_hub(split: str) -> list[dict[str, Any]]:
    import pandas as pd

    name = next(file for file in TASK.source.files if f"/{split}-" in file)
    frame = pd.read_parquet(download(TASK.source, name))
    return [{"question": row.question, "answer": row.answer} for row in frame.itertuples()]
