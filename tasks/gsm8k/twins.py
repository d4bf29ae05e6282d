"""Twins of GSM8K's problems: the same story with other numbers and names.

The solutions contain their calculations (`<<16-3-4=9>>`). A problem has a twin if each of its calculations uses only
numbers of the question, small constants, and earlier results; then the question's numbers are changed, everything is
calculated again, and the results must be as the original's: positive, and whole where they were whole.
"""

import ast
import random
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import add, mul, sub, truediv
from pathlib import Path

from a2rl.core.files import read_jsonl, write_jsonl

CALCULATION = re.compile(r"<<([^<>=]+)=([^<>]*)>>")
NUMBER = re.compile(r"(?<![\w.,/])\d+(?:\.\d+)?(?![\w/]|[.,]\d|%|th|st|nd|rd)")
OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv,
}  # fmt: skip
LARGEST = 1000
TRIES = 40
KEPT = frozenset(
    (Fraction(1), Fraction(2), Fraction(7), Fraction(10), Fraction(12), Fraction(24), Fraction(60), Fraction(100))
)
"""Numbers that are often constants of the world, such as the days of a week, stay as they are."""
WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
"""Numbers from 2 on as they are spelled."""
NAMES = ("Avery", "Blake", "Casey", "Devon", "Emery", "Harper", "Jules", "Kerry", "Lane", "Morgan", "Noel", "Quinn")
NOT_NAMES = frozenset(("She", "The", "They", "There", "This", "That", "Each", "One", "Half", "Everyone"))
NAME = re.compile(
    r"(?<=[.?!] )([A-Z][a-z]{2,})(?= (?:has|had|is|was|buys|bought|makes|made|wants|went|gets|got|sold)\b)"
)


def write_twins(hidden: Path, seed: str, target: Path) -> list[str]:
    """See `a2rl.task_api.contract.TwinsModule`."""
    twins: dict[str, dict[str, str]] = {}
    for number, row in enumerate(read_jsonl(hidden / "eval.jsonl")):
        twin = twin_of(row["question"], row["answer"], random.Random(f"gsm8k-twins/{seed}/{number}"))
        if twin is not None:
            twins[str(number)] = {"question": twin[0], "answer": twin[1]}
    write_jsonl(target / "eval.jsonl", twins.values())
    write_jsonl(target / "shots.jsonl", read_jsonl(hidden / "shots.jsonl"))
    return list(twins)


def twin_of(question: str, answer: str, rng: random.Random) -> tuple[str, str] | None:
    """Returns the question and the answer of a twin; None if none can be made."""
    calculations = CALCULATION.findall(answer)
    gold = answer.rpartition("####")[2].strip().replace(",", "")
    numbers = {Fraction(each) for each in NUMBER.findall(question)} - KEPT
    if not calculations or not numbers or Fraction(0) in numbers or _last_is_not(calculations, gold):
        return None
    if _is_told_otherwise(question, numbers):
        return None
    for _ in range(TRIES):
        changed = {each: _other(each, rng) for each in numbers}
        value = _calculated(calculations, changed, question)
        if value is not None and value != Fraction(gold):
            return _renamed(
                _with_numbers(question, changed), rng
            ), f"The twin of a problem has no worked solution.\n#### {_written(value)}"
    return None


def _with_numbers(question: str, changed: Mapping[Fraction, Fraction]) -> str:
    return NUMBER.sub(lambda found: _written(changed.get(Fraction(found[0]), Fraction(found[0]))), question)


def _is_told_otherwise(question: str, numbers: set[Fraction]) -> bool:
    """Returns whether one of the numbers is also in the question as a word or a part, such as `three` or `20%`."""
    rest = NUMBER.sub(" ", question)
    others = {Fraction(each) for each in re.findall(r"\d+", rest)}
    spelled = {Fraction(value) for value, word in enumerate(WORDS, 2) if re.search(rf"\b{word}\b", rest, re.IGNORECASE)}
    return bool(numbers & (others | spelled))


def _last_is_not(calculations: list[tuple[str, str]], gold: str) -> bool:
    try:
        return Fraction(calculations[-1][1].strip()) != Fraction(gold)
    except (ValueError, ZeroDivisionError):
        return True


def _other(number: Fraction, rng: random.Random) -> Fraction:
    """Returns a number of the same kind and about the same size."""
    if number.denominator != 1 or number > LARGEST:
        return number
    size = int(number)
    return Fraction(rng.randint(max(3, size - size // 3), size + max(3, size // 3)))


def _calculated(
    calculations: list[tuple[str, str]], changed: Mapping[Fraction, Fraction], question: str
) -> Fraction | None:
    """Does all calculations with other numbers; None if they cannot be followed, or the result makes no sense."""
    told = {Fraction(each) for each in NUMBER.findall(question)}
    known: dict[Fraction, Fraction] = {}
    value: Fraction | None = None
    for expression, result in calculations:
        try:
            old = Fraction(result.strip())
            if old in told | KEPT or known.get(old) is not None:
                return None  # which of the two a later calculation means is not known
            value = _value(ast.parse(expression.strip(), mode="eval").body, dict(changed) | known, told)
        except (ValueError, SyntaxError, ZeroDivisionError, KeyError, RecursionError):
            return None
        if value <= 0 or (old.denominator == 1) != (value.denominator == 1):
            return None
        known[old] = value
    return value if value is not None and value.denominator == 1 else None


def _value(node: ast.expr, numbers: Mapping[Fraction, Fraction], told: set[Fraction]) -> Fraction:
    """Calculates an expression.

    Raises:
        KeyError: A number comes neither from the question nor from an earlier result, and is no usual constant.
        ValueError: It is something else than a calculation.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        number = Fraction(str(node.value))
        return number if number in KEPT or number in told - numbers.keys() else numbers[number]
    if isinstance(node, ast.BinOp) and (operation := OPERATIONS.get(type(node.op))):
        return operation(_value(node.left, numbers, told), _value(node.right, numbers, told))
    raise ValueError("no calculation")


def _written(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else str(float(number))


def _renamed(question: str, rng: random.Random) -> str:
    """Gives the people in a question other names, which nobody in it has."""
    names = sorted(set(NAME.findall(f". {question}")) - NOT_NAMES)
    free = [name for name in NAMES if name not in question]
    others = dict(zip(names, rng.sample(free, min(len(names), len(free))), strict=False))
    return re.sub(r"\b[A-Z][a-z]+\b", lambda found: others.get(found[0], found[0]), question)
