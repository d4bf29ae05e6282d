"""The state of the abstract interpreter: what it has found, and how much it may still do."""

import ast
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from a2rl.labels.program import Program
from a2rl.labels.routes import Route
from a2rl.labels.values import GENERATED, TEXT, Frame, Value

MAX_STEPS = 60_000
"""Expressions that are evaluated at most, and parts of values that they copy. A real program needs a few thousand."""
MAX_CPU_S = 2.0
"""For one program."""
MAX_DEPTH = 24
"""Calls within calls that are followed."""
MAX_PHASES = 40


class Phase(NamedTuple):
    """A place where the program trains, or makes a checkpoint in another way."""

    route: Route
    confidence: float
    why: str
    file: str
    line: int
    key: tuple[int, ...]
    """The calls that lead there. A loop reaches a place again by the same calls."""
    is_loop: bool = False
    """Whether it is a loop of the program's own, which trains only if an optimizer takes a step."""


class OutOfFuelError(Exception):
    """The program is too large to be followed further."""


class ProgramEndsError(Exception):
    """The program ends itself here."""


@dataclass(eq=False)
class Machine:
    """State that all parts of the interpreter share.

    Args:
        program: The files.
        environ: The environment variables that the program is known to have.
    """

    program: Program
    environ: Mapping[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    """The arguments of the program that runs now."""
    phases: list[Phase] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    """Command lines that the program starts and that the interpreter does not follow."""
    files: dict[str, set[str]] = field(default_factory=dict)
    """The marks of what was written to files, by name."""
    modules: dict[str, Frame] = field(default_factory=dict)
    implicit: list[set[str]] = field(default_factory=list)
    """The marks of the conditions under which the present statement runs."""
    steps: int = 0
    began_s: float = field(default_factory=time.process_time)
    depth: int = 0
    loops: int = 0
    optimizer_steps: int = 0
    uncertain: int = 0
    """How many conditions that are not known lead to the present statement."""
    saves: list[tuple[str, str, int, set[str]]] = field(default_factory=list)
    """Where a model or folder was saved: what, file, line and marks."""
    generations: int = 0
    """How often a model generated something."""
    interactions: int = 0
    """How often generated text was given to something that answered."""

    def burn(self, work: int = 1) -> None:
        """Counts work: a step, or the parts that a step copies.

        Raises:
            OutOfFuelError: There was too much, or it took too long.
        """
        self.steps += work
        if self.steps > MAX_STEPS or time.process_time() - self.began_s > MAX_CPU_S:
            raise OutOfFuelError

    def note(
        self, route: Route, confidence: float, why: str, node: ast.AST, frame: Frame, is_loop: bool = False
    ) -> None:
        """Notes a phase, once for each way that leads to it."""
        line = getattr(node, "lineno", 0)
        key = (*frame.calls, id(node))
        if any(phase.key == key for phase in self.phases) or len(self.phases) >= MAX_PHASES:
            return
        certain = confidence if not self.uncertain else 0.6 * confidence
        self.phases.append(Phase(route, round(certain, 2), why, frame.module, line, key, is_loop))

    def conditions(self) -> set[str]:
        """Returns the marks of all conditions under which the present statement runs."""
        return {mark for marks in self.implicit for mark in marks}

    @property
    def is_filtering(self) -> bool:
        """Whether the present statement runs only for some of the generated texts."""
        return {GENERATED, TEXT} <= self.conditions()

    def save(self, what: str, node: ast.AST, frame: Frame, value: Value | None = None) -> None:
        """Notes that something was saved."""
        marks = value.everything() if value else set()
        self.saves.append((what, frame.module, getattr(node, "lineno", 0), marks))
