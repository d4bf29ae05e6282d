"""Reads what an agent's programs noted of their training (a2rl/recording/tracer.py): the phases of each process.

Agents can write what they like into the file, so everything in it is checked, and limited.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationError

from a2rl.core.files import FrozenModel
from a2rl.recording.tracer import MAX_BYTES

MAX_LINES, MAX_LINE = 60_000, 16_000
MAX_WORKS, MAX_CHECKPOINTS = 500, 400
"""Phases that are read, and checkpoints among which those are looked for that led to a submission."""
LOADED = "several checkpoints were loaded, and one was saved"
Text = Annotated[str, Field(max_length=1000)]
Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
Time = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class Steps(FrozenModel):
    """Steps of optimizers that were taken at one place in the agent's code."""

    file: Text = ""
    line: Count = 0
    function: Text = ""
    count: Count = 0


class Line(FrozenModel):
    """A line of the file; the fields of all events together."""

    event: Literal["train", "trained", "work", "saved", "loaded", "merged"]
    t: Time
    process: Text
    since: Time | None = None
    classes: Annotated[tuple[Text, ...], Field(max_length=32)] = ()
    settings: Annotated[tuple[Text, ...], Field(max_length=32)] = ()
    has_own_loss: bool = False
    file: Text = ""
    line: Count = 0
    steps: Annotated[tuple[Steps, ...], Field(max_length=32)] | Count | None = None
    generations: Count = 0
    turns: Count = 0
    failed: bool = False
    path: Text = ""
    how: Literal["", "run_merge", "add_weighted_adapter", "merge_and_unload"] = ""


@dataclass
class Work:
    """A phase of a process: the training of a trainer, a loop of steps, generations alone, or a merge."""

    process: str
    began: float
    """Seconds since 1970."""
    ended: float
    place: Steps = field(default_factory=Steps)
    """Where in the agent's code."""
    steps: int = 0
    generations: int = 0
    turns: int = 0
    """How often steps followed generations."""
    generated_before: int = 0
    """The generations of the process before it."""
    classes: tuple[str, ...] = ()
    """Those of a trainer, from its own to the most general one; empty if it is a loop."""
    settings: tuple[str, ...] = ()
    has_own_loss: bool = False
    merge: str = ""
    """How it merged checkpoints, if it did; `LOADED` if it perhaps did."""
    is_open: bool = False
    """Whether a trainer has begun and its end was not noted."""

    @property
    def is_loop(self) -> bool:
        """Whether it is neither a trainer's nor a merge."""
        return not (self.classes or self.merge)


class Checkpoint(NamedTuple):
    """A checkpoint that a process loaded or saved."""

    process: str
    at: float
    path: str


@dataclass
class Trace:
    """All that was noted, in order."""

    works: list[Work] = field(default_factory=list)
    saved: list[Checkpoint] = field(default_factory=list)
    loaded: list[Checkpoint] = field(default_factory=list)

    def before(self, path: str, until: float) -> list[Work]:
        """Returns the phases that led to a checkpoint: those of the process that saved it, until then, and those that
        led to the checkpoints that it had loaded. All phases until then, if it is not known who saved it.

        Args:
            path: The folder of the checkpoint, absolute or relative to the workspace, as the agent wrote it.
            until: Seconds since 1970.
        """
        origins: dict[str, float] = {}
        saved, loaded = self.saved[-MAX_CHECKPOINTS:], self.loaded[-MAX_CHECKPOINTS:]
        waiting, seen = [(posixpath.normpath(path), until)], set[tuple[str, float]]()
        while waiting:
            folder, at = waiting.pop()
            if (folder, at) in seen:  # an agent can note many loads of many checkpoints
                continue
            seen.add((folder, at))
            if saves := [each for each in saved if each.at <= at and _is_in(each.path, folder)]:
                last = saves[-1]
                origins[last.process] = max(last.at, origins.get(last.process, 0.0))
                waiting += [
                    (each.path, each.at) for each in loaded if each.process == last.process and each.at <= last.at
                ]
        return [each for each in self.works if each.began <= (origins.get(each.process, -1.0) if origins else until)]


def read_trace(path: Path) -> Trace:
    """Reads a file; one that is missing, or is not readable, shows nothing."""
    trace = Trace()
    reading: dict[str, _Process] = {}
    for line in _lines(path):
        process = reading.setdefault(line.process, _Process(line.process))
        process.read(line, trace)
    trace.works = sorted(trace.works, key=lambda work: work.began)[:MAX_WORKS]
    return trace


class _Process:
    """Puts the lines of a process together."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: Work | None = None
        self._generations = 0
        self._loaded: set[str] = set()
        """The checkpoints that were loaded since the last step."""

    def read(self, line: Line, trace: Trace) -> None:
        if line.event in {"saved", "loaded"}:
            checkpoints = trace.saved if line.event == "saved" else trace.loaded
            checkpoints.append(Checkpoint(line.process, line.t, line.path))
            self._combine(line, trace)
        elif line.event == "merged":
            self._begin(trace, line.t, merge=line.how)
        elif line.event == "train":
            place = Steps(file=line.file, line=line.line)
            work = self._begin(trace, line.t, place=place, classes=line.classes, settings=line.settings)
            work.has_own_loss, work.is_open = line.has_own_loss, True
        elif line.event == "trained" and self._work is not None and self._work.is_open:
            self._work.ended, self._work.is_open = line.t, False
            steps = line.steps if isinstance(line.steps, int) else int(not line.failed)
            self._work.steps = max(self._work.steps, steps)
        elif line.event == "work":
            self._count(line, trace)

    def _combine(self, line: Line, trace: Trace) -> None:
        """Notes that several checkpoints were loaded and, without training, one was saved."""
        if line.event == "loaded":
            self._loaded.add(line.path)
        elif len(self._loaded) > 1:
            self._begin(trace, line.t, merge=LOADED)
            self._loaded.clear()

    def _count(self, line: Line, trace: Trace) -> None:
        if line.steps:
            self._loaded.clear()
        steps = line.steps if isinstance(line.steps, tuple) else ()
        place = max(steps, key=lambda each: each.count, default=Steps())
        work = self._work
        if work is None or not (work.is_open or (work.is_loop and (not steps or _is_same(work.place, place)))):
            work = self._begin(trace, line.since or line.t, place=place)
        work.ended = line.t
        work.steps += sum(each.count for each in steps)
        work.generations += line.generations
        work.turns += line.turns
        self._generations += line.generations

    def _begin(self, trace: Trace, at: float, **fields: object) -> Work:
        self._work = Work(self._name, at, at, generated_before=self._generations, **fields)  # type: ignore[arg-type]
        trace.works.append(self._work)
        return self._work


def _is_same(one: Steps, other: Steps) -> bool:
    return (one.file, one.function) == (other.file, other.function)


def _is_in(path: str, folder: str) -> bool:
    """Says whether a file or folder that was saved is a folder, or is in it. Only the end of its path is compared,
    because a run can be read elsewhere than where it was made."""
    return f"/{folder.strip('/')}/" in f"{path}/"


def _lines(path: Path) -> Iterator[Line]:
    try:
        with path.open("rb") as file:
            read = 0
            for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE), b"")):
                read += len(raw)
                if number >= MAX_LINES or read > MAX_BYTES:
                    return
                try:
                    yield Line.model_validate_json(raw)
                except ValidationError:
                    continue
    except OSError:
        return
