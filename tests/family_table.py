"""The table of families x ways of saving: what is accepted, graded the same, and refused.

python -m tests.family_table                    # every family, way and type: a few minutes
python -m tests.family_table qwen3-0.6b phi-3   # some families
"""

import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.utils import logging

from a2rl.core.errors import InvalidSubmissionError
from a2rl.grading.submission_checks import Requirements, copy_submission
from a2rl.grading.submitted_files import Source
from a2rl.models.checkpoint import check_base_model, weights_digest
from a2rl.sampling import SamplingParams, open_sampler
from tests.model_families import FAMILIES, FORMERLY_REFUSED
from tests.ways_of_saving import DTYPES, WAYS, Trained

PROMPTS = ("Question: 1 + 1?", "Answer", "Let's think step by step. 2 + 2 is")
TOKENS = 12


class Cell(NamedTuple):
    """What became of one submission."""

    accepted: bool
    same_texts: bool
    why: str = ""

    def __str__(self) -> str:
        if not self.accepted:
            return f"REFUSED: {self.why}"
        return "same texts" if self.same_texts else "OTHER TEXTS"


class Bench:
    """A base model with its trained copy, and a workspace from which copies are submitted."""

    def __init__(self, family: str, folder: Path) -> None:
        self.family, self._folder = family, folder
        self.base = FAMILIES[family].build(folder / "base")
        check_base_model(self.base)
        self.complete = AutoConfig.from_pretrained(self.base).to_dict()
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self._count = 0

    def submit(self, path: str) -> Path:
        """Submits a folder of the workspace; returns the grader's copy."""
        self._count += 1
        kept = self._folder / f"kept-{self._count}"
        digest = copy_submission(Source(self.workspace, path), kept, Requirements(self.base, self.complete)).digest
        assert weights_digest(kept) == digest
        return kept

    def try_way(self, way: str, dtype: str) -> Cell:
        """Saves a trained copy, submits it, and compares its texts with those of the model that was saved."""
        path = f"{way}-{dtype}".replace(", ", "-")
        WAYS[way](Trained.copy_of(self.base), self.workspace / path, DTYPES[dtype])
        try:
            kept = self.submit(path)
        except InvalidSubmissionError as refused:
            return Cell(False, False, str(refused))
        return Cell(True, texts(kept) == texts(self._direct(dtype)))

    def _direct(self, dtype: str) -> Path:
        """Returns a folder with the trained copy's weights, which no grader has touched."""
        folder = self._folder / f"direct-{dtype}"
        if not folder.exists():
            folder.mkdir()
            trained = Trained.copy_of(self.base)
            save_file(trained.state(DTYPES[dtype]), folder / "model.safetensors", {"format": "pt"})
            trained.add_config(folder)
            trained.model.config.save_pretrained(folder)  # without the base model's quantisation
        return folder

    def foreign(self) -> str:
        """Submits a copy of another family; returns why it is refused."""
        names = list(FAMILIES)
        models = {name: FAMILIES[name].config["model_type"] for name in names}
        start = names.index(self.family)
        other = next(name for name in names[start:] + names if models[name] != models[self.family])
        FAMILIES[other].build(self.workspace / f"foreign-{other}")
        try:
            self.submit(f"foreign-{other}")
        except InvalidSubmissionError as refused:
            return str(refused)
        return ""


def texts(model: Path) -> list[str]:
    """Returns what a model writes after some prompts, greedily."""
    with open_sampler(model) as sampler:
        return [each.text for each in sampler.generate(PROMPTS, SamplingParams(max_new_tokens=TOKENS))]


def in_short(cells: Mapping[str, Cell]) -> str:
    """Returns what became of the copies in several types: once if it is the same for all."""
    found = {str(cell) for cell in cells.values()}
    return found.pop() if len(found) == 1 else "; ".join(f"{dtype}: {cell}" for dtype, cell in cells.items())


def say(*cells: str) -> None:
    sys.stdout.write("".join(cells) + "\n")
    sys.stdout.flush()


def main(chosen: list[str]) -> None:
    """Prints the table in Markdown, of all or of the chosen families and ways."""
    families = [name for name in FAMILIES if name in chosen] or list(FAMILIES)
    ways = [name for name in WAYS if name in chosen] or list(WAYS)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    say(f"A copy that was saved so, in each of {', '.join(DTYPES)}, is accepted and writes:\n")
    say("| family | formerly refused for |", *(f" {way} |" for way in ways), " another family |")
    say("|---|---|", *("---|" for _ in ways), "---|")
    for family in families:
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):  # trainers print their progress
            torch.manual_seed(0)
            bench = Bench(family, Path(folder))
            cells = [f" {in_short({dtype: bench.try_way(way, dtype) for dtype in DTYPES})} |" for way in ways]
            foreign = "refused" if bench.foreign() else "ACCEPTED"
        say(f"| {family} | {FORMERLY_REFUSED.get(family, '')} |", *cells, f" {foreign} |")


if __name__ == "__main__":
    main(sys.argv[1:])
