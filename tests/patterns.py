"""Finds every regular expression of the project in the syntax trees of its modules, and strings that are bad for it."""

import ast
import importlib
import itertools
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import regex

from a2rl.judge.parsers import MAX_LINE
from tasks.alfworld.alfred.transcript import LONGEST_LINE
from tasks.gsm8k.final_number import final_number
from tasks.humaneval.program import program
from tasks.webshop.shop.transcript import LONGEST_LINE as LONGEST_PAGE_LINE
from tests.run_maker import REPOSITORY

FOLDERS = ("a2rl", "stages", "flows", "tasks", "agents")
METHODS = frozenset({"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"})
POOL = "aA0_ \n\t.,-([{\"'<`#$:/\\"
"""Characters that are tried against every pattern, besides its own."""
SIZE = 4_000
FAST_S = 0.003
"""A pattern that takes less of SIZE characters is not measured further: a quadratic one takes longer."""
LIMIT_S = 0.5
MEASURED_S = 0.1
LONGER = 16
GROWTH = 128.0
"""LONGER times the characters may take so many times as long: linear patterns take 16 times, quadratic ones 256. Those
that look at no more than a few hundred characters at a time lie between, because the short text is no longer than that.
"""
GIVEN: dict[str, tuple[str, ...]] = {
    "a2rl/linux/gpus.py pattern": (r"model name\s*:\s*(.+)", r"Kernel Module(?: for \S+)?\s+(\d[\d.]*)"),
}
"""What is inserted where only the caller knows the pattern."""
NOT_OURS = {
    "a2rl/core/secrets.py b'|'.join(groups)": "the secrets themselves, as literals",
    "a2rl/judge/local.py pattern": "the tokens of the judge's tokenizer, as literals",
    "a2rl/judge/parsers.py pattern": "in the annotator that the user gives, for replies of limited length",
    "a2rl/mock_llm/play.py aside.asked": "in the scenario that the user gives",
    "a2rl/mock_llm/scenario.py asked": "in the scenario that the user gives",
}
"""Patterns that are not in the code, and why they need no test."""
TRUSTED = {
    "<script>(.*?)</script>": "reads the template of our own page",
    r"\(:objects(.*?)\)\s*\(:init(.*)\)\s*\(:goal(.*)\)\s*\)\s*$": "reads the game files of the data",
    r'"#help\.feedback#";\s+grammar :: """(.*?)""";': "reads a file that the package alfworld ships",
    r'"(instruction|output)": """(.*?)"""(?=,?\n)': "reads a prompt whose texts are at most as long as an answer",
    r"<(type|gold|answer)>(.*?)</\1>": "reads a prompt in whose texts the tags are escaped",
    r" with ((?:(?! with )[^:,])+: .*)$": "reads the instructions of the data",
    r"([^:]+): (.*?)(?:, and (?=[^:,]+: )|$)": "reads the instructions of the data",
}
"""Patterns that may take longer, and why nobody can use that."""
LIMITED = {
    "a2rl/judge/parsers.py": MAX_LINE,
    "tasks/alfworld/alfred/transcript.py": LONGEST_LINE,
    "tasks/webshop/shop/transcript.py": LONGEST_PAGE_LINE,
}
"""The characters that the patterns of a module get at most. They must be fast then, and need not be linear."""

WHOLE: dict[str, Callable[[str], object]] = {
    "tasks/gsm8k/final_number.py": final_number,
    "tasks/humaneval/program.py": lambda text: program("def f(x):\n", "f", text),
}
"""Readers whose patterns see short pieces of an answer, or only one pass of it: each reader is tried as a whole."""


class Pattern(NamedTuple):
    """A regular expression, and the methods that use it."""

    place: str
    text: str | bytes
    flags: int
    methods: frozenset[str]
    library: Any = re


class Bad(NamedTuple):
    """A string that repeats something until the pattern fails."""

    before: str
    unit: str
    end: str

    def of(self, size: int) -> str:
        """Returns the string with about so many characters."""
        return self.before + self.unit * (size // len(self.unit)) + self.end


class Slow(NamedTuple):
    """How long a pattern took for a bad string."""

    pattern: Pattern
    seconds: float = 0.0
    growth: float = 1.0
    """How many times as long LONGER times the characters took."""
    method: str = ""
    bad: Bad = Bad("", "", "")

    def __str__(self) -> str:
        text = f"{self.bad.before[:20]!r} + {self.bad.unit[:20]!r} * n + {self.bad.end!r}"
        return f"{self.seconds:7.3f} s, growth {self.growth:4.1f}: {self.pattern.place} {self.method} {text}"


class NotReadableError(Exception):
    """The text of a pattern is known only when it is used."""


def patterns() -> Iterator[Pattern]:
    """Yields the patterns of all modules.

    Raises:
        NotReadableError: The text of one cannot be found out.
    """
    for path in sorted(each for folder in FOLDERS for each in (REPOSITORY / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        uses = _uses(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (library := _library(node.func)) is not None:
                yield from _patterns(path, node, library, uses)


def tried() -> list[Pattern]:
    """Returns the patterns that are tried one by one."""
    return [each for each in patterns() if each.text not in TRUSTED and each.place.partition(":")[0] not in WHOLE]


def _library(called: ast.expr) -> Any:
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        return {"re": re, "regex": regex}.get(called.value.id) if called.attr in {*METHODS, "compile"} else None
    return None


def _uses(tree: ast.Module) -> dict[int, frozenset[str]]:
    """Returns the methods of each compiled pattern that has a name, by the place of the call that compiles it."""
    names: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in METHODS:
            names.setdefault(node.value.id, set()).add(node.attr)
    return {
        id(node.value): frozenset(names.get(target.id, ()))
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _patterns(path: Path, call: ast.Call, library: Any, uses: dict[int, frozenset[str]]) -> Iterator[Pattern]:
    assert isinstance(call.func, ast.Attribute)
    place = f"{path.relative_to(REPOSITORY)}:{call.lineno}"
    method = call.func.attr
    methods = uses.get(id(call)) or METHODS if method == "compile" else frozenset({method})
    flags = next((each.value for each in call.keywords if each.arg == "flags"), None)
    position = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(method, 2)
    if flags is None and len(call.args) > position:
        flags = call.args[position]
    for text in _texts(path, call.args[0], place):
        yield Pattern(place, text, int(_value(path, flags, place)) if flags else 0, methods, library)


def _texts(path: Path, node: ast.expr, place: str) -> Iterable[str | bytes]:
    """Returns the text of a pattern; of one that a loop compiles, those of all patterns in the module."""
    known = f"{path.relative_to(REPOSITORY)} {ast.unparse(node)}"
    if known in NOT_OURS:
        return []
    if known in GIVEN:
        return GIVEN[known]
    try:
        return [_value(path, node, place)]
    except NotReadableError:
        found = _in_values(vars(importlib.import_module(_name(path))), 0)
        texts = {each if isinstance(each, str) else each.pattern for each in found}
        if not texts:
            raise
        return texts


def _in_values(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 4 and isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _in_values(each, depth + 1)


def _name(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)


def _value(path: Path, node: ast.expr, place: str) -> Any:
    """Returns the value of an expression; what an f-string inserts and only the caller knows is the word `ab`."""
    plain = ast.Expression(_Inserted().visit(ast.parse(ast.unparse(node), mode="eval").body))
    for tree in (ast.Expression(ast.parse(ast.unparse(node), mode="eval").body), plain):
        code = compile(ast.fix_missing_locations(tree), place, "eval")
        with suppress(NameError):
            return eval(code, {"re": re, "regex": regex})
        with suppress(NameError, ImportError, AttributeError):
            return eval(code, {**vars(importlib.import_module(_name(path)))})
    raise NotReadableError(f"{place}: {ast.unparse(node)}")


class _Inserted(ast.NodeTransformer):
    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        return ast.Constant("ab")


def bad_strings(pattern: Pattern) -> Iterator[Bad]:
    """Yields strings of what the parts of a pattern match, again and again, and then no end of a match."""
    text = pattern.text.decode("latin-1") if isinstance(pattern.text, bytes) else pattern.text
    own, pieces, repeats = [], [], []
    with suppress(re.error):  # the package `regex` knows more
        parsed = re._parser.parse(text, pattern.flags)  # type: ignore[attr-defined]
        own, pieces = list(dict.fromkeys(_leaves(parsed))), list(_pieces(parsed, ""))
        repeats = list(dict.fromkeys(_in_order(parsed, "")))
    pairs = ["".join(pair) for pair in itertools.permutations(own[:6], 2)]
    for unit, end in itertools.product(dict.fromkeys([*POOL, *own, *pieces, *pairs]), ("\x00", "")):
        yield Bad("", unit, end)
    for (before, unit), end in itertools.product(repeats, ("\x00", "\n\x00")):
        yield Bad(before, unit, end)


def _in_order(parsed: Any, before: str) -> Iterator[tuple[str, str]]:
    for node in parsed:
        name, value = str(node[0]), node[1]
        for inner in _inner(name, value):
            if "REPEAT" in name and (unit := _sample(inner)) and value[1] > 1:
                yield before, unit
                for leaf in dict.fromkeys(_leaves(inner)):
                    yield before, leaf
            yield from _in_order(inner, before)
        before += _sample([node])


def _pieces(parsed: Any, before: str) -> Iterator[str]:
    """Yields what the beginnings of a pattern match."""
    for node in parsed:
        before += _sample([node])
        if before:
            yield before
        for inner in _inner(str(node[0]), node[1]):
            yield from (piece for piece in _pieces(inner, "") if piece)


def _inner(name: str, value: Any) -> list[Any]:
    if "REPEAT" in name:
        return [value[2]]
    if name == "SUBPATTERN":
        return [value[3]]
    if name == "BRANCH":
        return list(value[1])
    if name in {"ASSERT", "ASSERT_NOT"}:
        return [value[1]]
    return [value] if name == "ATOMIC_GROUP" else []


def _leaves(parsed: Any) -> Iterator[str]:
    for name, value in parsed:
        inner = _inner(str(name), value)
        if inner:
            for each in inner:
                yield from _leaves(each)
        else:
            yield from _characters(str(name), value)


def _sample(parsed: Any) -> str:
    found = ""
    for name, value in parsed:
        inner = _inner(str(name), value)
        if "REPEAT" in str(name):
            found += _sample(inner[0]) * min(max(1, value[0]), 20)
        elif str(name) not in {"ASSERT", "ASSERT_NOT"}:
            found += _sample(inner[0]) if inner else next(iter(_characters(str(name), value)), "")
    return found


CATEGORIES = {"DIGIT": "0", "SPACE": " \n", "WORD": "a_0", "NOT_DIGIT": "a ", "NOT_SPACE": "a.", "NOT_WORD": " ."}


def _characters(name: str, value: Any) -> Iterator[str]:
    if name == "LITERAL":
        yield chr(value)
    elif name == "NOT_LITERAL":
        yield from (each for each in "a \n" if ord(each) != value)
    elif name == "ANY":
        yield from "a "
    elif name == "CATEGORY":
        yield from CATEGORIES[str(value).removeprefix("CATEGORY_")]
    elif name == "RANGE":
        yield from (chr(value[0]), chr(value[1]))
    elif name == "IN":
        if str(value[0][0]) == "NEGATE":
            excluded = {each for part in value[1:] for each in _characters(str(part[0]), part[1])}
            yield from (each for each in "a \n(0" if each not in excluded)
        else:
            for part in value:
                yield from _characters(str(part[0]), part[1])


def slowest(pattern: Pattern) -> Slow:
    """Returns what took the longest of a pattern's bad strings, or the first that takes longer than linearly."""
    found = Slow(pattern)
    for method, bad in itertools.product(sorted(_kinds(pattern)), dict.fromkeys(bad_strings(pattern))):
        seconds = _seconds(pattern, method, bad.of(SIZE))
        if seconds > FAST_S:  # other processes may have had the core meanwhile
            seconds = min(seconds, *(_seconds(pattern, method, bad.of(SIZE)) for _ in range(2)))
        if seconds > found.seconds:
            found = Slow(pattern, seconds, 1.0, method, bad)
            if seconds > FAST_S and (growth := _growth(pattern, method, bad)) > GROWTH:
                return found._replace(growth=growth)
    return found


def slowest_within(pattern: Pattern, size: int) -> Slow:
    """Returns what took the longest of a pattern's bad strings of this size."""
    tries = itertools.product(sorted(_kinds(pattern)), dict.fromkeys(bad_strings(pattern)))
    timed = (Slow(pattern, _seconds(pattern, method, bad.of(size)), 1.0, method, bad) for method, bad in tries)
    worst = max(timed, key=lambda each: each.seconds)
    return worst._replace(seconds=_cpu_s(pattern, worst.method, worst.bad.of(size)))


def _kinds(pattern: Pattern) -> set[str]:
    """Returns the methods to try: those that go through a whole text do it alike."""
    return {each if each in {"match", "fullmatch"} else "sub" for each in pattern.methods}


def _growth(pattern: Pattern, method: str, bad: Bad) -> float:
    """Returns how much longer LONGER times the characters take, by the least of several measurements."""
    if _seconds(pattern, method, bad.of(SIZE)) >= 0.8 * LIMIT_S:  # the timer is not exact
        return inf
    times = [min(_cpu_s(pattern, method, bad.of(size)) for _ in range(2)) for size in (SIZE // LONGER, SIZE)]
    return times[1] / times[0]


def _cpu_s(pattern: Pattern, method: str, text: str) -> float:
    """Returns the mean processor time of as many calls as the clock of the processor, which may be coarse, needs."""
    started, calls = time.process_time(), 0
    while (spent := time.process_time() - started) < MEASURED_S:
        _seconds(pattern, method, text)
        calls += 1
    return spent / calls


def _seconds(pattern: Pattern, method: str, text: str) -> float:
    """Returns how long a call took, by the clock on the wall; it is ended after LIMIT_S."""
    compiled = pattern.library.compile(pattern.text, pattern.flags)
    subject: Any = text.encode("latin-1", "replace") if isinstance(pattern.text, bytes) else text
    empty: Any = subject[:0]
    started = time.perf_counter()
    with suppress(TimeoutError):
        signal.signal(signal.SIGVTALRM, _stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
        try:
            compiled.sub(empty, subject) if method == "sub" else getattr(compiled, method)(subject)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.perf_counter() - started


def _stop(*_: object) -> None:
    raise TimeoutError
