"""DeepSearchQA's data. The agent gets training questions, the search and the episodes as a package, and modules for
rollouts; the grader gets the eval questions.

    visible/  train.jsonl   prompt.txt   research/ (the package)   pages/ (mini)
              rollout.py, services.py, model_text.py, episodes.py, rollout_workers.py, decoder/
    hidden/   eval.jsonl    prompt.txt   pages/ (mini, or a mirror's)                        about.json

full: the data set's 900 questions, split as the reference does (autorl_bench/benchmarks/deepsearchqa/data.py,
`split_dataset`: shuffled with seed 42, 100 for training, then the first 200 of the rest); from the hub, or from a
mirror with DSQA-full.csv. A mirror may also have a folder pages/ (*.txt, *.md, or *.jsonl of title and text), which is
then what the grader searches by default. mini: generated (see mini.py); the eval questions are about another world,
whose pages the agent does not get, so that memorising facts does not help.
"""

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import file_digest, write_jsonl
from a2rl.core.hub import download
from a2rl.handout import hand_out
from a2rl.task_api.contract import Variant
from tasks.deepsearchqa import mini
from tasks.deepsearchqa.mini import Split, World
from tasks.deepsearchqa.research import Index, Question
from tasks.deepsearchqa.research.episode import INSTRUCTIONS
from tasks.deepsearchqa.task import TASK

HERE = Path(__file__).parent
MINI_TRAIN, MINI_SEED = 3000, 2604
pretraining_text, canonical = mini.pretraining_text, mini.canonical
SHUFFLE_SEED, TRAIN_ROWS = 42, 100
FILE = TASK.source.files[0]
FILE_DIGEST = TASK.source.sha256[FILE]


def prepare(variant: Variant, source: Path | None, visible: Path, hidden: Path) -> None:
    """See `a2rl.task_api.contract.Preparer`."""
    if variant == "mini":
        _write_world("train", MINI_SEED, MINI_TRAIN, visible)
        draw(str(MINI_SEED), hidden)
    else:
        _prepare_full(source, visible, hidden)
    copy_tools(visible)


def copy_tools(visible: Path) -> None:
    """Copies the environment as a package, and the modules for rollouts."""
    hand_out(visible, HERE / "research", HERE / "workspace" / "rollout.py", HERE / "workspace" / "services.py")


def draw(seed: str, hidden: Path) -> None:
    """See `a2rl.task_api.contract.DrawingPreparer`. A new world has the same names and other facts."""
    _write_world("eval", seed, TASK.variant("mini").eval_items, hidden)
    (hidden / "about.json").write_text(json.dumps({"questions": "generated, with the pages"}), encoding="utf-8")


def _write_world(split: Split, seed: int | str, questions: int, folder: Path) -> None:
    world, pages = World(split, seed), folder / "pages"
    pages.mkdir()
    write_jsonl(pages / "pages.jsonl", (page._asdict() for page in world.pages()))
    _write(folder / f"{split}.jsonl", list(mini.generate(questions, world, Index(world.pages()), f"{split}/{seed}")))
    # A small model has little context, and learns the format from examples.
    (folder / "prompt.txt").write_text("", encoding="utf-8")


def _prepare_full(source: Path | None, visible: Path, hidden: Path) -> None:
    train, test = split_of(read_published(source))
    _write(visible / "train.jsonl", train)
    _write(hidden / "eval.jsonl", test)
    about = {"pages": "none: grade with --search serpapi or searxng"}
    if source is not None and (source / "pages").is_dir():
        shutil.copytree(source / "pages", hidden / "pages")
        about = {"pages": "the mirror's"}
    (hidden / "about.json").write_text(json.dumps(about), encoding="utf-8")
    for folder in (visible, hidden):
        (folder / "prompt.txt").write_text(INSTRUCTIONS, encoding="utf-8")


def split_of(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """Returns the training questions and the eval set; `Dataset.shuffle` is numpy's permutation with the same seed."""
    import numpy as np

    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(questions))
    shuffled = [questions[place] for place in order]
    return shuffled[:TRAIN_ROWS], shuffled[TRAIN_ROWS : TRAIN_ROWS + TASK.variant("full").eval_items]


def read_published(source: Path | None) -> list[Question]:
    """Reads the published questions, from a local mirror or from the hub.

    Raises:
        UsageError: the mirror lacks the file.
        IntegrityError: the file is not the published one.
        InfrastructureError: the hub cannot be reached.
    """
    path = download(TASK.source, FILE) if source is None else source / FILE
    if not path.is_file():
        raise UsageError(f"{source} has no {FILE}: a DeepSearchQA mirror must have the data set's file")
    if file_digest(path) != FILE_DIGEST:
        raise IntegrityError(f"{path} is not the published {FILE}: get a clean copy")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [Question(row["problem"], row["answer_type"], row["answer"], row["problem_category"]) for row in rows]


def _write(path: Path, questions: Sequence[Question]) -> None:
    write_jsonl(
        path,
        (
            {
                "problem": question.problem,
                "problem_category": question.category,
                "answer": question.answer,
                "answer_type": question.answer_type,
            }
            for question in questions
        ),
    )
