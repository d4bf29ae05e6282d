"""HumanEval's data: `train.jsonl` for the agent; `eval.jsonl` for the grader.

The agent also gets what the model is asked (prompts.py), the rule that finds the program in an answer (program.py,
model_text.py), and the modules for rollouts.

full: the 164 problems, from the hub at a pinned revision or from a local mirror with `HumanEval.jsonl.gz`, verified by
one digest. As in the reference, the agent gets the first 82 and is graded on the others. `training.jsonl` is
the first half for the grader, so that `a2rl score` can judge published answers to all of them. mini: generated (see
mini.py).
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import digest_of, write_jsonl
from a2rl.core.hub import download
from a2rl.handout import hand_out
from a2rl.task_api.contract import Variant
from tasks.humaneval import mini, program, prompts
from tasks.humaneval.task import TASK

MINI_TRAIN, MINI_SEED = 3000, 2604
pretraining_text, canonical = mini.pretraining_text, mini.canonical
MIRROR = "HumanEval.jsonl.gz"
TRAIN = 82
FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
DIGEST = "3c3148615a7e25da87784ec03b5f3bc3d168e8b129d72dcbfe05380056182f53"
"""Digest of the rows, independent of their file format."""


def prepare(variant: Variant, source: Path | None, visible: Path, hidden: Path) -> None:
    """See `a2rl.task_api.contract.Preparer`."""
    if variant == "mini":
        train = _rows("train", mini.generate(MINI_TRAIN, MINI_SEED, "train"))
        test = _rows("eval", _public_edition())
    else:
        rows = _real(source)
        train, test = rows[:TRAIN], rows[TRAIN:]
        write_jsonl(hidden / "training.jsonl", train)
        # The reference's names, so that an agent written for it finds what it looks for.
        train = [{**row, "question": row["prompt"], "answer": row["canonical_solution"]} for row in train]
    write_jsonl(visible / "train.jsonl", train)
    hand_out(visible, prompts, program)
    write_jsonl(hidden / "eval.jsonl", test)


def draw(seed: str, hidden: Path) -> None:
    """See `a2rl.task_api.contract.DrawingPreparer`."""
    known = {mini.canonical(problem.prompt) for problem in _public_edition()}
    drawn = mini.generate(TASK.variant("mini").eval_items, seed, "eval", but=known)
    write_jsonl(hidden / "eval.jsonl", _rows("eval", drawn))


def _public_edition() -> list[mini.Problem]:
    return mini.generate(TASK.variant("mini").eval_items, MINI_SEED, "eval")


def _rows(split: mini.Split, problems: Sequence[mini.Problem]) -> list[dict[str, Any]]:
    return [
        {
            "task_id": f"{split}/{number}",
            "prompt": problem.prompt,
            "entry_point": problem.entry_point,
            "canonical_solution": problem.solution,
            "test": problem.test,
            "group": "skills combined" if problem.family.combined else "one skill",
        }
        for number, problem in enumerate(problems)
    ]


def _real(source: Path | None) -> list[dict[str, Any]]:
    """The published rows.

    Raises:
        UsageError: the mirror lacks its file.
        IntegrityError: the rows are not the published ones.
    """
    rows = [{field: row.get(field) for field in FIELDS} for row in (_from_mirror(source) if source else _from_hub())]
    if digest_of(rows) != DIGEST:
        raise IntegrityError(f"HumanEval from {source or 'the hub'} differs from the published data: get a clean copy")
    return rows


def _from_mirror(source: Path) -> list[Mapping[str, Any]]:
    path = source / MIRROR
    if not path.is_file():
        raise UsageError(f"{source} has no {MIRROR}: a HumanEval mirror must have this file")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise IntegrityError(f"{path} cannot be read ({error}); get a clean copy") from error


def _from_hub() -> list[Mapping[str, Any]]:
    import pandas as pd

    frame = pd.read_parquet(download(TASK.source, TASK.source.files[0]))
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
