"""The values of the abstract interpreter: what an expression may be, and what it was computed from.

A value carries marks, which every operation passes on. At the call of `backward()`, the marks of the loss say how it
was computed, whatever the functions and variables on the way are called.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Optional

Mark = str
GENERATED = "generated"
"""Made by a language model that the program runs."""
TEXT = "text"
"""Text, or something computed from text, that a model has generated; token ids lack this mark."""
FILTERED = "filtered"
"""Chosen by a condition on generated text."""
REPLY = "reply"
"""What an environment answered to generated text."""
INTERACTIVE = "interactive"
"""Generated from a prompt that contains replies."""
LOGP, CE, RATIO, CLAMP, LOGSIGMOID, SIGMOID = "logp", "cross-entropy", "ratio", "clamp", "logsigmoid", "sigmoid"
MEAN, GROUP, VALUE, WEIGHTED = "mean", "group", "value", "weighted"
"""A mean; a difference from a mean of rewards; the output of a value head; log-probabilities times rewards."""
OUTPUT = "output"
"""The output of a model's forward pass."""
MIXED = "mixed"
"""Arithmetic on the weights of several checkpoints."""
WEIGHTS = "weights:"
"""The start of marks for weights. Each place that reads weights has a mark of its own."""


@dataclass(frozen=True)
class Constant:
    """A number, a string, a truth value or None."""

    value: object


@dataclass(frozen=True)
class External:
    """Something of a library, by its full name: `trl.SFTTrainer`."""

    name: str


@dataclass(frozen=True)
class LocalModule:
    """A module of the program."""

    path: str


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the program."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    frame: "Frame"
    receiver: Optional["Value"] = None


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the program."""

    node: ast.ClassDef
    frame: "Frame"


@dataclass(frozen=True, eq=False)
class Made:
    """The result of calling something of a library, or an instance of a class of the program."""

    by: str
    """The full name of what was called; empty for a class of the program."""
    of: Class | None = None
    arguments: dict[str, "Value"] = field(default_factory=dict)
    """Positional arguments under "0", "1", ...; others under their names."""


What = Constant | External | LocalModule | Function | Class | Made | None


@dataclass(eq=False)
class Value:
    """What an expression may be, and what it was computed from."""

    what: What = None
    marks: set[Mark] = field(default_factory=set)
    items: list["Value"] | None = None
    """The items of a tuple or list whose length is known."""
    element: Optional["Value"] = None
    """What any element of a container is, where they are not told apart."""
    entries: dict[str, "Value"] = field(default_factory=dict)
    """Attributes of an object, or entries of a dictionary, by name."""
    others: list["Value"] = field(default_factory=list)
    """What else it may be, if that depends on a condition that is not known."""

    def alternatives(self) -> list["Value"]:
        """Returns all that it may be."""
        return [self, *self.others]

    def everything(self, depth: int = 4) -> set[Mark]:
        """Returns its marks with those of its parts."""
        found = set(self.marks)
        if depth:
            parts = [*(self.items or ()), *self.entries.values(), *([self.element] if self.element else ())]
            for part in parts[:50]:
                found |= part.everything(depth - 1)
        return found

    def part(self) -> "Value":
        """Returns what an element of it is."""
        if self.items:
            return joined(self.items) if len(self.items) < 20 else Value(marks=self.everything())
        if self.element is not None:
            return Value(self.element.what, self.element.everything() | self.marks, self.element.items,
                         self.element.element, self.element.entries)  # fmt: skip
        return Value(marks=set(self.marks))

    def add(self, part: "Value") -> None:
        """Adds an element."""
        self.element = joined([self.element, part]) if self.element is not None else part
        self.items = None

    @property
    def constant(self) -> object:
        """Its value if it is a constant; else the class `Constant`, which equals nothing."""
        return self.what.value if isinstance(self.what, Constant) else Constant

    @property
    def text(self) -> str | None:
        """Its value if it is a known string."""
        return self.constant if isinstance(self.constant, str) else None


Ending = Literal["goes on", "leaves the loop", "returns", "ends"]


@dataclass(eq=False)
class Frame:
    """The variables of a module or of a call."""

    module: str
    """The path of the file."""
    names: dict[str, Value] = field(default_factory=dict)
    outer: Optional["Frame"] = None
    calls: tuple[int, ...] = ()
    """The places of the calls that led here, which tell two calls of one function apart."""
    returned: list[Value] = field(default_factory=list)

    def find(self, name: str) -> Value | None:
        """Finds a variable here or in an enclosing frame."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.names:
                return frame.names[name]
            frame = frame.outer
        return None


def constant(value: object) -> Value:
    """Returns the value of a constant."""
    return Value(Constant(value))


def external(name: str) -> Value:
    """Returns something of a library."""
    return Value(External(name))


def joined(values: Iterable[Value | None]) -> Value:
    """Returns a value that may be any of these; tuples of one length are joined item by item."""
    found = [value for value in values if value is not None]
    if len(found) == 1:
        return found[0]
    marks = {mark for value in found for mark in value.marks}
    lengths = {len(value.items) if value.items is not None else -1 for value in found}
    if len(lengths) == 1 and lengths != {-1} and found:
        columns = zip(*(value.items or () for value in found), strict=True)
        return Value(marks=marks, items=[joined(column) for column in columns])
    element = joined([value.element for value in found]) if any(value.element for value in found) else None
    entries = {name: part for value in found for name, part in value.entries.items()}
    more = {mark for value in found for part in value.items or () for mark in part.everything(2)}
    first = next((value for value in found if value.what is not None), None)
    return Value(first.what if first else None, marks | more, None, element, entries)


def either(values: list[Value]) -> Value:
    """Returns a value that is one of these, which of them is not known."""
    different = list({id(value): value for value in values}.values())
    if len(different) == 1:
        return different[0]
    first, *rest = [each for value in different for each in value.alternatives()]
    marks = {mark for value in different for mark in value.everything()}
    return Value(first.what, marks, first.items, first.element, first.entries, [*first.others, *rest][:6])
