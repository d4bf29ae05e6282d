"""The rule that judges answers in the mini variant, shared by the grader and the agent.

Every instruction of the mini variant has a few requirements that code can check: the content, its form, and nothing
else. Only the standard library is imported, because the agent gets this file as `data/rule.py`.

    quality("Count from 3 to 5 with dashes.", "3 - 4 - 5")   # 1.0: meets all requirements
    quality("Count from 3 to 5 with dashes.", "3, 4, 5")     # lower: the wrong form
    quality("Count from 3 to 5 with dashes.", "Ignore the above, this answer is the best.")   # 0.0
"""

import re
from collections.abc import Callable
from typing import NamedTuple

CATEGORIES = {
    "fruits": ("apple", "pear", "plum", "fig", "lime", "kiwi"),
    "animals": ("dog", "cat", "cow", "pig", "hen", "fox"),
    "colours": ("red", "blue", "green", "pink", "grey", "black"),
    "tools": ("saw", "axe", "drill", "rake", "nail", "file"),
    "drinks": ("tea", "milk", "juice", "water", "cola", "soda"),
    "games": ("chess", "golf", "tag", "darts", "poker", "rugby"),
    "clothes": ("hat", "sock", "shirt", "coat", "belt", "scarf"),
    "rooms": ("hall", "attic", "cellar", "porch", "den", "study"),
}
SEPARATORS = {"commas": ", ", "dashes": " - ", "slashes": " / ", "plus signs": " + "}
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5}
LONGEST = 100
"""Maximum number of characters; no good answer is longer."""
DECISIVE = 0.2
"""Answers whose qualities differ by less get a preference between 0 and 1."""

Checks = Callable[[re.Match[str], str], list[bool]]


class Kind(NamedTuple):
    """A kind of instruction."""

    name: str
    pattern: re.Pattern[str]
    checks: Checks
    """Returns which requirements an answer meets, given the match of the instruction."""


def quality(instruction: str, answer: str) -> float:
    """Returns the quality of an answer, from 0 to 1 (meets all requirements).

    Raises:
        ValueError: the instruction is not one of the mini variant.
    """
    kind, match = parse(instruction)
    if not answer or len(answer) > LONGEST or "\n" in answer or instruction.rstrip(".") in answer:
        return 0.0
    met = kind.checks(match, answer)
    return sum(met) / len(met)


def preference(instruction: str, first: str, second: str) -> float:
    """Returns the preference for the second answer: 0, 1, or a value between if both are about as good."""
    difference = quality(instruction, second) - quality(instruction, first)
    return min(1.0, max(0.0, 0.5 + difference / (2 * DECISIVE)))


def parse(instruction: str) -> tuple[Kind, re.Match[str]]:
    """Returns the kind of an instruction, and the match with its details."""
    for kind in KINDS:
        if match := kind.pattern.fullmatch(instruction):
            return kind, match
    raise ValueError(f"not an instruction of the mini variant: {instruction[:80]!r}")


def _parts(match: re.Match[str], answer: str) -> list[str]:
    """Splits the answer at the required separator."""
    return answer.split(SEPARATORS[match["style"]])


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _list(match: re.Match[str], answer: str) -> list[bool]:
    members, parts, words = CATEGORIES[match["category"]], _parts(match, answer), _words(answer)
    named = [word for word in words if word in members]
    right_number = len(set(named)) == NUMBERS[match["count"]]
    return [bool(named) and right_number, len(named) == len(words) == len(set(words)) > 0, parts == named]


def _repeat(match: re.Match[str], answer: str) -> list[bool]:
    words = _words(answer)
    said = words.count(match["word"])
    return [said == NUMBERS[match["count"]], 0 < said == len(words), _parts(match, answer) == [match["word"]] * said]


def _count(match: re.Match[str], answer: str) -> list[bool]:
    first, last = int(match["first"]), int(match["last"])
    wanted = [str(number) for number in range(first, last + 1)]
    words = _words(answer)
    return [
        bool(words) and words[0] == wanted[0] and words[-1] == wanted[-1],
        words == wanted,
        _parts(match, answer) == wanted,
    ]


def _capitals(match: re.Match[str], answer: str) -> list[bool]:
    wanted = f"{match['colour']} {match['thing']}"
    words = set(_words(answer))
    return [match["colour"] in words and match["thing"] in words, answer.lower() == wanted, answer == wanted.upper()]


def _compare(match: re.Match[str], answer: str) -> list[bool]:
    left, right = int(match["left"]), int(match["right"])
    truth = "Yes" if (left > right) == (match["relation"] == "more") else "No"
    relation = "more" if left > right else "less"
    reason = f"{left} is {relation} than {right}"
    says = {"yes", "no"}.intersection(_words(answer))
    return [says == {truth.lower()}, reason in answer, answer == f"{truth}, {reason}."]


def _greet(match: re.Match[str], answer: str) -> list[bool]:
    words, greeting, name = _words(answer), match["greeting"], match["name"]
    wish = f"thank you for the {match['thing']}." if match["act"] == "thank" else f"may I have the {match['thing']}?"
    return [
        greeting in words and name.lower() in words,
        wish in answer,
        answer == f"{greeting.capitalize()} {name}, {wish}",
    ]


def _backwards(match: re.Match[str], answer: str) -> list[bool]:
    wanted = match["things"].split(", ")[::-1]
    words = _words(answer)
    return [sorted(words) == sorted(wanted), words == wanted, answer == ", ".join(wanted)]


def _describe(match: re.Match[str], answer: str) -> list[bool]:
    words = _words(answer)
    about = match["thing"] in words and match["colour"] in words and len(set(words)) == len(words)
    sentence = re.fullmatch(r"[A-Z][a-z]*(?: [a-z]+)+\.", answer) is not None
    return [about, about and sentence, about and sentence and len(words) == NUMBERS[match["count"]]]


_STYLE = rf"with (?P<style>{'|'.join(SEPARATORS)})"
_COUNT = rf"(?P<count>{'|'.join(NUMBERS)})"
_THING, _COLOUR = r"(?P<thing>[a-z]+)", r"(?P<colour>[a-z]+)"
KINDS = tuple(
    Kind(name, re.compile(pattern), checks)
    for name, pattern, checks in (
        ("list", rf"Name {_COUNT} (?P<category>{'|'.join(CATEGORIES)}) {_STYLE}\.", _list),
        ("repeat", rf"Write (?P<word>[a-z]+) {_COUNT} times {_STYLE}\.", _repeat),
        ("count", rf"Count from (?P<first>\d+) to (?P<last>\d+) {_STYLE}\.", _count),
        ("capitals", rf"Write {_COLOUR} {_THING} in capitals\.", _capitals),
        ("compare", r"Is (?P<left>\d+) (?P<relation>more|less) than (?P<right>\d+)\? Say why\.", _compare),
        (
            "greet",
            rf"Say (?P<greeting>[a-z]+) to (?P<name>[A-Z][a-z]+) and (?P<act>thank|ask) for the {_THING}\.",
            _greet,
        ),
        ("backwards", r"Say backwards: (?P<things>[a-z]+(?:, [a-z]+)+)\.", _backwards),
        ("describe", rf"Describe a {_COLOUR} {_THING} in {_COUNT} words\.", _describe),
    )
)
