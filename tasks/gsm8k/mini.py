r"""The mini variant of gsm8k: word problems of one to four steps, and the pretraining text of the base model `tiny`.

Contract: everything is a function of its seed. A problem's split is determined by its *skeleton*, the question's text
before names and things are filled in, so that no eval question occurs in train or pretraining with other names. Answers
are written like GSM8K's (Cobbe et al. 2021, arXiv 2110.14168), without the `<<..>>` annotations:

    generate(1, seed=0, split="train")[0].question
    'Omar starts with 14 books. He finds 6 more. He sells all for 2 dollars each. How many dollars does he get?'
    generate(1, seed=0, split="train")[0].answer
    '- starts with 14, finds 6: 14 + 6 = 20\n- for 2 dollars: 20 * 2 = 40\n#### 40'
"""

import hashlib
import random
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from operator import add, floordiv, mul, sub
from typing import Literal

Operator = Literal["+", "-", "*", "/"]
Split = Literal["train", "eval"]
_Pool = Literal["train", "eval", "pretraining"]

LARGEST_NUMBER = 50
LARGEST_START = 15
LARGEST_CHANGE = 7
LARGEST_FACTOR = 4
"""Numbers are small so that a model of a million parameters learns to add them in about a minute of CPU time."""

PRETRAINING_DOCUMENTS = 6_000
QUIZ_WORKED_ONE_STEP = 0.5
QUIZ_WORKED_MORE_STEPS = 0.1
"""Shares of the quiz answers that are worked out: many of the easy ones, few of the others."""

_STEPS_WEIGHTS = {1: 15, 2: 35, 3: 30, 4: 20}
_QUIZ_STEPS_WEIGHTS = {1: 50, 2: 25, 3: 15, 4: 10}
_KINDS = (2, 4, 74, 20)
"""Shares of echoes, sums, worked stories and quizzes among the pretraining documents."""
_POOL_BOUNDS: tuple[tuple[_Pool, int], ...] = (("eval", 48), ("train", 128), ("pretraining", 256))
"""The pool of a skeleton is the first one whose bound is above the skeleton's hash byte."""

_GIRLS = ("Mia", "Ana", "Zoe", "Ida", "Lena", "Nora")
_BOYS = ("Tom", "Ben", "Max", "Leo", "Omar", "Finn")
_THINGS = ("apples", "shells", "stamps", "coins", "cards", "pens", "books", "eggs")

_ENDINGS = ("The result is {}.", "Result: {}", "#### {}")
_QUIZ_OPENINGS = ("", "Quiz: ", "Riddle: ", "Puzzle: ", "For today: ", "Exercise: ")
_QUIZ_CUES = (" Answer:", "\nAnswer:", "\nSay it quickly\nAnswer:", "\nNow think\nAnswer:", "\nYour turn now\nAnswer:")

_OPERATIONS: dict[Operator, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul, "/": floordiv}

# A sentence of the story, and the words for it in a worked solution.
_Phrase = tuple[str, str]
_PLAIN_OPENINGS: tuple[_Phrase, ...] = (
    ("{name} has {a} {things}.", "has {a}"),
    ("{name} starts with {a} {things}.", "starts with {a}"),
)
_GROUP_OPENINGS: tuple[_Phrase, ...] = (
    ("{name} has {a} bags with {b} {things} each.", "{a} bags with {b}"),
    ("{name} fills {a} boxes with {b} {things} each.", "{a} boxes with {b}"),
)
_SUM_OPENINGS: tuple[_Phrase, ...] = (
    ("{name} has {a} red {things} and {b} blue {things}.", "{a} red and {b} blue"),
    ("{name} has {a} big {things} and {b} small {things}.", "{a} big and {b} small"),
)
_GAINS: tuple[_Phrase, ...] = (
    ("{She} buys {n} more.", "buys {n}"),
    ("{She} finds {n} more.", "finds {n}"),
    ("{She} gets {n} from {friend}.", "gets {n}"),
)
_LOSSES: tuple[_Phrase, ...] = (
    ("{She} loses {n} of them.", "loses {n}"),
    ("{She} gives {n} to {friend}.", "gives {n}"),
    ("{She} sells {n} to {friend}.", "sells {n}"),
)
_DOUBLINGS: tuple[_Phrase, ...] = (("Then {she} doubles the number of {things}.", "doubles"),)
_HALVINGS: tuple[_Phrase, ...] = (("Half of the {things} break.", "half"),)
_COUNT_ENDING: _Phrase = ("How many {things} does {name} have now?", "")
_PRICE_ENDING: _Phrase = ("{She} sells all for {n} dollars each. How many dollars does {she} get?", "for {n} dollars")
_SHARE_ENDING: _Phrase = ("{n} friends share them. How many {things} does each friend get?", "{n} friends")
_MORE_ENDING: _Phrase = ("{rival} has {n} more than {name}. How many {things} does {rival} have?", "{n} more")
_FEWER_ENDING: _Phrase = ("{rival} has {n} fewer than {name}. How many {things} does {rival} have?", "{n} fewer")
_TOGETHER_ENDING: _Phrase = ("{rival} has {n} more than {name}. How many {things} do they have together?", "{n} more")


@dataclass(frozen=True)
class Step:
    """One line of a worked solution: what happens, and `left operator right = result`."""

    clause: str
    left: int
    operator: Operator
    right: int

    @property
    def result(self) -> int:
        """The right-hand side of the equation."""
        return _OPERATIONS[self.operator](self.left, self.right)

    @property
    def equation(self) -> str:
        """The step as text, such as "14 + 6 = 20"."""
        return f"{self.left} {self.operator} {self.right} = {self.result}"


@dataclass(frozen=True)
class Problem:
    """A question, and its worked solution whose last line is `#### N`."""

    question: str
    answer: str
    steps: tuple[Step, ...]

    @property
    def result(self) -> int:
        """The final number."""
        return self.steps[-1].result


_CANONICAL_NAMES = {
    **dict.fromkeys(_GIRLS + _BOYS, "Mia"),
    **dict.fromkeys(_THINGS, "apples"),
    **{"He": "She", "he": "she", "him": "her"},
}
_NAME = re.compile(rf"\b({'|'.join(_CANONICAL_NAMES)})\b")


def canonical(text: str) -> str:
    """See `a2rl.task_api.contract.Preparer`: every person is called Mia, and has apples; numbers stay."""
    return _NAME.sub(lambda found: _CANONICAL_NAMES[found[0]], text)


def generate(n: int, seed: int | str, split: Split, but: Collection[str] = ()) -> list[Problem]:
    """Returns `n` problems of one split with different questions, none of which has a canonical text in `but`."""
    rng = random.Random(f"gsm8k-mini/{split}/{seed}")
    problems: dict[str, Problem] = {}
    while len(problems) < n:
        problem = _draw(rng, split)
        if canonical(problem.question) not in but:
            problems.setdefault(problem.question, problem)
    return list(problems.values())


def pretraining_text(seed: int) -> Iterator[str]:
    """Yields documents that teach the skills (sums, worked stories) but not the benchmark's format.

    A quiz mostly asks for the result only, so that the base model guesses an answer where working step by step would
    have been right. Post-training can improve that.
    """
    rng = random.Random(f"gsm8k-mini/pretraining/{seed}")
    for document in rng.choices((_echo, _sums, _worked_story, _quiz), weights=_KINDS, k=PRETRAINING_DOCUMENTS):
        yield document(rng)


def _sums(rng: random.Random) -> str:
    return "Sums: " + "; ".join(_random_step(rng).equation for _ in range(8))


def _echo(rng: random.Random) -> str:
    """A repeated text: the simplest exercise in copying from the context."""
    numbers = [str(number) for number in range(2, LARGEST_NUMBER)]
    words = [rng.choice(rng.choice((_GIRLS + _BOYS, _THINGS, numbers))) for _ in range(12)]
    return f"{' '.join(words)}\nAgain: {' '.join(words)}"


def _worked_story(rng: random.Random) -> str:
    problem = _draw(rng, "pretraining")
    ending = rng.choice(_ENDINGS).format(problem.result)
    return f"{problem.question}\nWorking:\n{_working(problem)}{ending}"


def _quiz(rng: random.Random) -> str:
    problem = _draw(rng, "pretraining", _QUIZ_STEPS_WEIGHTS)
    opening, cue = rng.choice(_QUIZ_OPENINGS), rng.choice(_QUIZ_CUES)
    worked = rng.random() < (QUIZ_WORKED_ONE_STEP if len(problem.steps) == 1 else QUIZ_WORKED_MORE_STEPS)
    answer = f"\n{_working(problem)}So {problem.result}" if worked else f" {problem.result}"
    return f"{opening}{problem.question}{cue}{answer}"


def _working(problem: Problem) -> str:
    return "".join(f"- {step.clause}: {step.equation}\n" for step in problem.steps)


def _random_step(rng: random.Random) -> Step:
    while True:
        story = _Story(rng, value=rng.randint(2, LARGEST_NUMBER))
        rng.choice((story.gain, story.lose, story.multiply, story.divide))()
        if story.steps:
            return story.steps[0]


def _draw(rng: random.Random, pool: _Pool, weights: dict[int, int] = _STEPS_WEIGHTS) -> Problem:
    """Draws a problem whose skeleton belongs to `pool`; `weights` are those of the numbers of steps."""
    while True:
        (steps,) = rng.choices(list(weights), weights=list(weights.values()))
        story = _draw_story(rng, steps)
        skeleton = " ".join(story.sentences)
        if len(story.steps) == steps and _pool_of(skeleton) == pool:
            return _fill_in(rng, skeleton, story.steps)


def _pool_of(skeleton: str) -> _Pool:
    byte = hashlib.sha256(skeleton.encode()).digest()[0]
    return next(pool for pool, bound in _POOL_BOUNDS if byte < bound)


def _fill_in(rng: random.Random, skeleton: str, steps: list[Step]) -> Problem:
    """Fills people and things into a skeleton."""
    girl = rng.random() < 0.5
    name = rng.choice(_GIRLS if girl else _BOYS)
    friend, rival = rng.sample([other for other in _GIRLS + _BOYS if other != name], 2)
    pronouns = {"She": "She", "she": "she", "her": "her"} if girl else {"She": "He", "she": "he", "her": "him"}
    question = skeleton.format(name=name, friend=friend, rival=rival, things=rng.choice(_THINGS), **pronouns)
    lines = [f"- {step.clause}: {step.equation}" for step in steps]
    return Problem(question, "\n".join([*lines, f"#### {steps[-1].result}"]), tuple(steps))


def _draw_story(rng: random.Random, steps: int) -> "_Story":
    """Draws a story of `steps` steps, or of fewer if the numbers allow no more; then the caller draws again."""
    story = _Story(rng)
    ending, ending_steps = rng.choice([(end, cost) for end, cost in _Story.ENDINGS if cost <= steps])
    story.open(with_step=steps > ending_steps and rng.random() < 0.4)
    while len(story.steps) + ending_steps < steps:
        before = len(story.steps)
        story.change()
        if len(story.steps) == before:
            return story
    ending(story)
    return story


class _KeepUnknownFields(dict[str, object]):
    """Leaves unknown fields in the text: numbers are filled in first, people and things later."""

    def __missing__(self, key: str) -> str:
        return f"{{{key}}}"


class _Story:
    """A quantity and its changes: every sentence that changes it adds a step."""

    def __init__(self, rng: random.Random, value: int = 0) -> None:
        self.rng = rng
        self.value = value
        self.sentences: list[str] = []
        self.clauses: list[str] = []
        self.steps: list[Step] = []

    def say(self, phrases: tuple[_Phrase, ...], **numbers: int) -> None:
        sentence, clause = self.rng.choice(phrases)
        self.sentences.append(sentence.format_map(_KeepUnknownFields(numbers)))
        self.clauses.append(clause.format(**numbers))

    def step(self, operator: Operator, right: int) -> None:
        """Adds a step for everything said since the last one."""
        self.steps.append(Step(", ".join(self.clauses), self.value, operator, right))
        self.clauses = []
        self.value = self.steps[-1].result

    def open(self, with_step: bool) -> None:
        if not with_step:
            self.value = self.rng.randint(3, LARGEST_START)
            self.say(_PLAIN_OPENINGS, a=self.value)
        elif self.rng.random() < 0.5:
            self.value, each = self.rng.randint(2, LARGEST_FACTOR), self.rng.randint(2, LARGEST_CHANGE)
            self.say(_GROUP_OPENINGS, a=self.value, b=each)
            self.step("*", each)
        else:
            self.value, more = self.rng.randint(3, LARGEST_START), self.rng.randint(2, LARGEST_CHANGE)
            self.say(_SUM_OPENINGS, a=self.value, b=more)
            self.step("+", more)

    def change(self) -> None:
        changes = (self.gain, self.lose, self.double, self.halve)
        (change,) = self.rng.choices(changes, weights=(3, 3, 1, 1))
        change()

    def gain(self, phrases: tuple[_Phrase, ...] = _GAINS) -> None:
        if self.value + LARGEST_CHANGE <= LARGEST_NUMBER:
            more = self.rng.randint(2, LARGEST_CHANGE)
            self.say(phrases, n=more)
            self.step("+", more)

    def lose(self, phrases: tuple[_Phrase, ...] = _LOSSES) -> None:
        if self.value > 2:
            fewer = self.rng.randint(2, min(LARGEST_CHANGE, self.value - 1))
            self.say(phrases, n=fewer)
            self.step("-", fewer)

    def double(self) -> None:
        if self.value * 2 <= LARGEST_NUMBER:
            self.say(_DOUBLINGS)
            self.step("*", 2)

    def halve(self) -> None:
        if self.value % 2 == 0:
            self.say(_HALVINGS)
            self.step("/", 2)

    def multiply(self) -> None:
        factors = [n for n in range(2, LARGEST_FACTOR + 1) if self.value * n <= LARGEST_NUMBER]
        if factors:
            factor = self.rng.choice(factors)
            self.say((_PRICE_ENDING,), n=factor)
            self.step("*", factor)

    def divide(self) -> None:
        divisors = [n for n in range(2, LARGEST_FACTOR + 1) if self.value % n == 0 and self.value > n]
        if divisors:
            divisor = self.rng.choice(divisors)
            self.say((_SHARE_ENDING,), n=divisor)
            self.step("/", divisor)

    def count(self) -> None:
        self.say((_COUNT_ENDING,))

    def compare_more(self) -> None:
        self.gain((_MORE_ENDING,))

    def compare_fewer(self) -> None:
        self.lose((_FEWER_ENDING,))

    def together(self) -> None:
        own = self.value
        if 2 * own + LARGEST_CHANGE <= LARGEST_NUMBER:
            self.gain((_TOGETHER_ENDING,))
            self.clauses = ["together"]
            self.value, other = own, self.value
            self.step("+", other)

    ENDINGS = ((count, 0), (count, 0), (multiply, 1), (divide, 1), (compare_more, 1), (compare_fewer, 1), (together, 2))
