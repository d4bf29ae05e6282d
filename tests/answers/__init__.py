"""Answers of real models with a person's verdicts, to hold the readers of answers against.

There are 400 answers to questions of GSM8K's test set and 328 to the problems of HumanEval, each half by smollm2-135m
and half by Qwen2.5-Coder-0.5B-Instruct, generated greedily with up to 400 tokens. They were asked in six and in four
ways, with and without examples, steps, headings and boxes. A verdict says whether a careful person takes the right
number, or code that passes the published tests, from the answer. For that, all answers on which two readers disagree
were read, and all that contain the right number near their end, or of which any block or run of lines passes the tests.

    python -m tests.answers MIRROR    # how often the readers agree with the verdicts; MIRROR has the published tests
"""

import json
import lzma
from pathlib import Path
from typing import NamedTuple


class Labelled(NamedTuple):
    """An answer of a model and whether it is right."""

    model: str
    id: str
    """The row of GSM8K's test set, or the id of the HumanEval problem."""
    text: str
    right: bool
    gold: float | None = None
    """The right number, for GSM8K."""


def labelled(task: str) -> list[Labelled]:
    """Returns the labelled answers of a task."""
    with lzma.open(Path(__file__).parent / f"{task}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [Labelled(**json.loads(line)) for line in file]
