"""What a grade leaves beside its result: what the model wrote for each item, in full, and meanwhile how far it is.

The items of a result have their answers shortened. A compressed file of JSON lines has every turn as the model wrote
it, with its reasoning.

    with recorded(sampler, job.result, ids) as recording:
        grader.grade(recording, hidden, ids, limits, options)
    for output in read_outputs(outputs_path(job.result)):
        output.item, output.turns[-1].answer

The progress is a small file, written by the process that grades, to be shown to users.
"""

import gzip
import json
import shutil
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import ValidationError

from a2rl.core.errors import IntegrityError
from a2rl.core.files import StrictModel
from a2rl.core.secrets import scrub
from a2rl.sampling import (
    Completion,
    Conversation,
    Message,
    Prompt,
    Sampler,
    SamplerAround,
    SamplingParams,
    translated,
)

T = TypeVar("T")
SUFFIX = ".outputs.jsonl.gz"
BASELINE_NAME = f".graded{SUFFIX}"
"""The name in the folder of a stored baseline, as the DVC stage leaves it there, whose result is `.graded.json`."""


class Turn(StrictModel):
    """One prompt and its answer."""

    prompt: str | tuple[Message, ...]
    """What was added to the prompt of the turn before, or a whole prompt."""
    is_whole: bool
    """Whether it is a whole prompt: the first one, or one that does not begin with the prompt before."""
    answer: str
    finish: Literal["stop", "length"]
    prompt_tokens: int
    tokens: int


class Output(StrictModel):
    """The work on one item."""

    item: str
    """The id of the item; empty if the task asked about something else than its items, one by one."""
    sample: int = 0
    """0, 1, ... if the items are answered several times."""
    turns: tuple[Turn, ...]


def outputs_path(result: Path) -> Path:
    """Returns the file with the outputs that belong to a result."""
    return result.with_name(result.stem + SUFFIX)


def read_outputs(path: Path) -> Iterator[Output]:
    """Yields the outputs in a file, in the order in which each device worked on the items.

    Raises:
        FileNotFoundError: There is no such file: the grade is from a version that did not keep outputs.
        IntegrityError: The file is damaged.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield Output.model_validate_json(line)
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError, ValidationError) as error:
        raise IntegrityError(f"{path} is damaged: {error}") from error


def join_outputs(parts: Sequence[Path], whole: Path) -> None:
    """Moves the outputs of the parts of a job into one file; parts without outputs are left out."""
    with suppress(OSError), whole.open("wb") as joined:  # without outputs, the grade still counts
        for part in parts:
            with suppress(FileNotFoundError), part.open("rb") as file:
                shutil.copyfileobj(file, joined)  # compressed files in a row are a compressed file
            part.unlink(missing_ok=True)


def keep_copy(outputs: Path, target: Path) -> Path | None:
    """Copies a file of outputs; returns the copy, or None if there is nothing to copy or no room for it."""
    try:
        shutil.copyfile(outputs, target)
    except OSError:
        return None
    return target


@contextmanager
def recorded(
    sampler: Sampler,
    result: Path,
    ids: Sequence[str],
    sample: int = 0,
    on_answer: Callable[[], None] = lambda: None,
) -> Iterator[Sampler]:
    """Records what a sampler is asked and answers in this context; at the end, writes it to the file beside a result.

    A file that cannot be written does not harm the grade; it is then missing.

    Args:
        sampler: Answers.
        ids: The items that are asked about, in order.
        sample: The number of the round, from 0; the first round replaces what an earlier attempt has left.
        on_answer: Called whenever the sampler has answered.
    """
    recording = _RecordingSampler(sampler, on_answer)
    yield recording
    _write(outputs_path(result), recording.outputs(ids, sample), "ab" if sample else "wb")


def _write(path: Path, outputs: Sequence[Output], mode: str) -> None:
    text = "".join(json.dumps(each.model_dump(mode="json"), ensure_ascii=False) + "\n" for each in outputs)
    try:
        with path.open(mode) as file:
            file.write(gzip.compress(scrub(text).encode("utf-8", "replace"), mtime=0))
    except OSError:
        with suppress(OSError):
            path.unlink(missing_ok=True)


class _RecordingSampler(SamplerAround):
    """A sampler that remembers what was asked and answered; see `a2rl.sampling.Sampler`."""

    def __init__(self, sampler: Sampler, on_answer: Callable[[], None]) -> None:
        self._sampler, self._on_answer = sampler, on_answer
        self._conversations: list[list[Turn]] = []

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        """See `Sampler`."""
        return self._sampler.converse([self._recorded(each) for each in conversations], params)

    def outputs(self, ids: Sequence[str], sample: int) -> list[Output]:
        """Returns what was recorded. Tasks ask about their items in order, one conversation for each."""
        names = ids if len(ids) == len(self._conversations) else [""] * len(self._conversations)
        found = zip(names, self._conversations, strict=True)
        return [Output(item=name, sample=sample, turns=tuple(turns)) for name, turns in found]

    def _recorded(self, conversation: Conversation[T]) -> Conversation[T]:
        turns: list[Turn] = []
        self._conversations.append(turns)
        before: Prompt = ""

        def ask(prompt: Prompt) -> Generator[Prompt, Completion, Completion]:
            nonlocal before
            completion = yield prompt
            is_whole = not before or prompt[: len(before)] != before
            turns.append(
                Turn(
                    prompt=prompt if is_whole else prompt[len(before) :], is_whole=is_whole, answer=completion.text,
                    finish=completion.finish, prompt_tokens=completion.prompt_tokens, tokens=completion.tokens,
                )
            )  # fmt: skip
            before = prompt
            self._on_answer()
            return completion

        return translated(conversation, ask)


WRITTEN_EVERY_S = 0.5


class Progress(NamedTuple):
    """How far a grade is."""

    done: int
    """Items with a result."""
    total: int
    answers: int
    """Answers of the model. An item of an interactive task takes many."""
    most_answers: int
    """About the most answers that all items can take."""

    @property
    def most_answers_left(self) -> int:
        """About the most answers that the items without a result can still take."""
        return min(self.most_answers - self.answers, self.most_answers * (self.total - self.done) // max(1, self.total))


OnProgress = Callable[[Progress], None]
"""Called repeatedly while a grade lasts."""


def ignore_progress(_: Progress) -> None:
    """Shows nothing."""


class ProgressFile:
    """Counts, and writes the numbers to the file now and then."""

    def __init__(self, result: Path, total: int, steps: int) -> None:
        """Begins to count.

        Args:
            steps: The most answers that an item takes.
        """
        self._file = progress_path(result)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._done, self._answers, self._total, self._most_answers = 0, 0, total, total * steps
        self._next_write = 0.0
        self._write()

    def add_item(self) -> None:
        """Counts an item with a result."""
        self._done = min(self._done + 1, self._total)
        self._write()

    def add_answer(self) -> None:
        """Counts an answer of the model."""
        self._answers += 1
        self._write()

    def remove(self) -> None:
        """Removes the file, when the grade is done."""
        self._file.unlink(missing_ok=True)

    def _write(self) -> None:
        if time.monotonic() < self._next_write:
            return
        self._next_write = time.monotonic() + WRITTEN_EVERY_S
        with suppress(OSError):  # on a full disk, there is no progress to be seen, but there is a grade
            self._file.write_text(f"{self._done} {self._total} {self._answers} {self._most_answers}")


def progress_path(result: Path) -> Path:
    """Returns the file with the progress of the grade that writes this result."""
    return result.with_suffix(".progress")


def read_progress(file: Path) -> Progress | None:
    """Reads a file that `progress_path` names; None if the grade has not begun."""
    try:
        done, total, answers, most_answers = map(int, file.read_text().split())
    except (FileNotFoundError, ValueError):  # the file may be incomplete
        return None
    return Progress(done, total, answers, most_answers)


def joint_progress(results: Iterable[Path]) -> Progress | None:
    """Returns the progress of the parts of a grade that have no result yet; None while one of them has not begun."""
    parts = [read_progress(progress_path(result)) for result in results if not result.exists()]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return Progress(*map(sum, zip(*known, strict=True)))
