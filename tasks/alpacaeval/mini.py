"""The mini variant of alpacaeval: instructions that a rule can judge, and the text that the base model `tiny` reads.

Contract: everything is a function of its seed. A hash of an instruction without people's names decides whether it
belongs to eval or to training, so that no instruction of eval is in training under another name. Things, colours and
numbers matter, because an answer has to use them. An instruction has a good answer, which meets all requirements of
`rule.py`, and the reference's, which meets only some:

    generate(1, seed=0, split="train")[0]
    Exercise(kind='count', instruction='Count from 3 to 6 with dashes.', good='3 - 4 - 5 - 6', reference='3, 4, 5, 6')
"""

import hashlib
import random
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.alpacaeval.rule import CATEGORIES, NUMBERS, SEPARATORS

Split = Literal["train", "eval"]

PRETRAINING_DOCUMENTS = 7_000
GOOD_SHARE = 0.2
"""Share of good answers in the pretraining text: the base model has seen them, but mostly gives others."""
LARGEST_NUMBER = 30

_EVAL_BYTES = 56
"""Instructions whose canonical form has a lower hash byte belong to eval, others to training and pretraining."""

_NAMES = ("Tom", "Mia", "Ben", "Ana", "Max", "Zoe", "Leo", "Ida", "Lena", "Omar")
_COLOURS = ("red", "blue", "green", "pink", "grey", "black", "white", "brown")
_THINGS = (
    "dog", "cat", "pen", "cup", "book", "hat", "box", "key", "ball", "tree",
    "fish", "bird", "lamp", "coat", "drum", "leaf", "bag", "door", "ring", "egg",
)  # fmt: skip
_FRAMES = (
    ("Task: ", "\nReply: "),
    ("Q: ", "\nA: "),
    ("Teacher: ", "\nPupil: "),
    ("### Instruction:\n", "\n\n### Answer:\n"),
    ("", "\n"),
)
_REMARKS = (" I hope this helps.", " That is my answer.", " Is that all?", " Done!")


@dataclass(frozen=True)
class Exercise:
    """An instruction with a good answer, and with the answer of a mediocre model."""

    kind: str
    instruction: str
    good: str
    reference: str


_NAME = re.compile(rf"\b({'|'.join(_NAMES)})\b")


def canonical(text: str) -> str:
    """See `a2rl.task_api.contract.Preparer`: every person is called Tom."""
    return _NAME.sub(_NAMES[0], text)


def generate(n: int, seed: int | str, split: Split, but: Collection[str] = ()) -> list[Exercise]:
    """Returns `n` exercises of one split; their instructions differ, in eval by more than a name.

    None has a canonical text in `but`.
    """
    rng = random.Random(f"alpacaeval-mini/{split}/{seed}")
    exercises: dict[str, Exercise] = {}
    while len(exercises) < n:
        exercise = _draw(rng, split)
        if canonical(exercise.instruction) in but:
            continue
        key = canonical(exercise.instruction) if split == "eval" else exercise.instruction
        exercises.setdefault(key, exercise)
    return list(exercises.values())


def pretraining_text(seed: int) -> Iterator[str]:
    """Yields instructions in many formats with answers that are rarely good, which post-training can improve.

    None has the format of the grader's prompt.
    """
    rng = random.Random(f"alpacaeval-mini/pretraining/{seed}")
    for _ in range(PRETRAINING_DOCUMENTS):
        exercises = [_draw(rng, "train") for _ in range(rng.randint(1, 2))]
        before, after = rng.choice(_FRAMES)
        yield "\n\n".join(f"{before}{each.instruction}{after}{_rarely_good_answer(rng, each)}" for each in exercises)


def _rarely_good_answer(rng: random.Random, exercise: Exercise) -> str:
    if rng.random() < GOOD_SHARE:
        return exercise.good
    answer = rng.choice((exercise.reference, exercise.reference, exercise.good))
    return answer + rng.choice(_REMARKS) if rng.random() < 0.5 or answer == exercise.good else answer


def _draw(rng: random.Random, split: Split) -> Exercise:
    while True:
        exercise = rng.choice(_KINDS)(rng)
        if _split_of(exercise.instruction) == split:
            return exercise


def _split_of(instruction: str) -> Split:
    return "eval" if hashlib.sha256(canonical(instruction).encode()).digest()[0] < _EVAL_BYTES else "train"


def _join(parts: Sequence[str], style: str) -> str:
    return SEPARATORS[style].join(parts)


def _other_than(rng: random.Random, known: Sequence[str], but: str) -> str:
    return rng.choice([each for each in known if each != but])


def _list(rng: random.Random) -> Exercise:
    category, count, style = rng.choice(list(CATEGORIES)), rng.choice(list(NUMBERS)), rng.choice(list(SEPARATORS))
    words = rng.sample(CATEGORIES[category], NUMBERS[count])
    wrong_form = _join(words, _other_than(rng, list(SEPARATORS), style))
    too_few = _join(words[:-1], style)
    return Exercise(
        "list",
        f"Name {count} {category} with {style}.",
        _join(words, style),
        rng.choice((wrong_form, too_few, f"Some {category} are {_join(words, style)}")),
    )


def _repeat(rng: random.Random) -> Exercise:
    word, count, style = rng.choice(_THINGS), rng.choice(list(NUMBERS)), rng.choice(list(SEPARATORS))
    words = [word] * NUMBERS[count]
    wrong_form = _join(words, _other_than(rng, list(SEPARATORS), style))
    too_many = _join([*words, word], style)
    return Exercise(
        "repeat", f"Write {word} {count} times with {style}.", _join(words, style), rng.choice((wrong_form, too_many))
    )


def _count(rng: random.Random) -> Exercise:
    first, style = rng.randint(1, LARGEST_NUMBER - 5), rng.choice(list(SEPARATORS))
    numbers = [str(number) for number in range(first, first + rng.randint(3, 6))]
    wrong_form = _join(numbers, _other_than(rng, list(SEPARATORS), style))
    with_a_gap = _join([*numbers[:1], *numbers[2:]], style)
    return Exercise(
        "count",
        f"Count from {numbers[0]} to {numbers[-1]} with {style}.",
        _join(numbers, style),
        rng.choice((wrong_form, with_a_gap)),
    )


def _capitals(rng: random.Random) -> Exercise:
    words = f"{rng.choice(_COLOURS)} {rng.choice(_THINGS)}"
    mediocre = rng.choice((words.title(), words, f"The word is {words.upper()}"))
    return Exercise("capitals", f"Write {words} in capitals.", words.upper(), mediocre)


def _compare(rng: random.Random) -> Exercise:
    left, right = rng.sample(range(1, LARGEST_NUMBER), 2)
    asked, true = rng.choice(("more", "less")), "more" if left > right else "less"
    verdict = "Yes" if asked == true else "No"
    reason = f"{left} is {true} than {right}"
    mediocre = rng.choice((f"{verdict}.", f"{verdict}, I think so.", f"I think {reason}."))
    return Exercise("compare", f"Is {left} {asked} than {right}? Say why.", f"{verdict}, {reason}.", mediocre)


def _greet(rng: random.Random) -> Exercise:
    greeting, name, thing = rng.choice(("hello", "goodbye")), rng.choice(_NAMES), rng.choice(_THINGS)
    act, wish = rng.choice((("thank", f"thank you for the {thing}."), ("ask", f"may I have the {thing}?")))
    start = f"{greeting.capitalize()} {name}"
    mediocre = rng.choice((f"{start}.", f"{start}, the {thing}.", wish[0].upper() + wish[1:]))
    return Exercise("greet", f"Say {greeting} to {name} and {act} for the {thing}.", f"{start}, {wish}", mediocre)


def _backwards(rng: random.Random) -> Exercise:
    things = rng.sample(_THINGS, rng.randint(2, 3))
    good = ", ".join(things[::-1])
    mediocre = rng.choice((", ".join(things), " ".join(things[::-1])))
    return Exercise("backwards", f"Say backwards: {', '.join(things)}.", good, mediocre)


def _describe(rng: random.Random) -> Exercise:
    colour, thing, count = rng.choice(_COLOURS), rng.choice(_THINGS), rng.choice(("four", "five"))
    four, five = f"The {thing} is {colour}.", f"This is a {colour} {thing}."
    good, mediocre = (four, five) if count == "four" else (five, four)
    return Exercise(
        "describe", f"Describe a {colour} {thing} in {count} words.", good, rng.choice((mediocre, good.rstrip(".")))
    )


_KINDS: tuple[Callable[[random.Random], Exercise], ...] = (
    _list,
    _repeat,
    _count,
    _capitals,
    _compare,
    _greet,
    _backwards,
    _describe,
)
