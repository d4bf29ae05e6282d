r"""The mini variant of gsm8k: word problems of one to four steps, and the text that the base model `tiny` grew up on.

Contract: everything is a function of its seed. A problem's split follows from its *skeleton*, the question's text
before names and things are filled in, so that no eval question is ever a train or pretraining question with other
names. Answers are written like GSM8K's (Cobbe et al. 2021, arXiv 2110.14168), without the `<<..>>` annotations:

    generate(1, seed=0, split="train")[0].question
    'Omar starts with 14 books. He finds 6 more. He sells all for 2 dollars each. How many dollars does he get?'
    generate(1, seed=0, split="train")[0].answer
    '- starts with 14, finds 6: 14 + 6 = 20\n- for 2 dollars: 20 * 2 = 40\n#### 40'
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Operator = Literal["+", "-", "*", "/"]
Split = Literal["train", "eval"]
_Pool = Literal["train", "eval", "pretraining"]

LARGEST_NUMBER = 50
LARGEST_START = 15
LARGEST_CHANGE = 7
LARGEST_FACTOR = 4
"""Numbers are this small so that a million parameters learn their sums in about a minute of CPU."""

PRETRAINING_DOCUMENTS = 6_000
QUIZ_WORKED_ONE_STEP = 0.5
QUIZ_WORKED_MORE_STEPS = 0.1
"""Which share of the quiz answers are worked out: many of the easy ones, few of the others."""

_STEPS_WEIGHTS = {1: 15, 2: 35, 3: 30, 4: 20}
_QUIZ_STEPS_WEIGHTS = {1: 50, 2: 25, 3: 15, 4: 10}
_KINDS = (2, 4, 74, 20)
"""Shares of echoes, sums, worked stories and quizzes among the pretraining documents."""
_POOL_BOUNDS: tuple[tuple[_Pool, int], ...] = (("eval", 48), ("train", 128), ("pretraining", 256))
"""A skeleton whose hash byte is below 48 is eval's, else below 128 train's, else pretraining's."""

_GIRLS = ("Mia", "Ana", "Zoe", "Ida", "Lena", "Nora")
_BOYS = ("Tom", "Ben", "Max", "Leo", "Omar", "Finn")
_THINGS = ("apples", "shells", "stamps", "coins", "cards", "pens", "books", "eggs")

_ENDINGS = ("The result is {}.", "Result: {}", "#### {}")
_QUIZ_OPENINGS = ("", "Quiz: ", "Riddle: ", "Puzzle: ", "For today: ", "Exercise: ")
_QUIZ_CUES = (" Answer:", "\nAnswer:", "\nSay it quickly\nAnswer:", "\nNow think\nAnswer:", "\nYour turn now\nAnswer:")

# A sentence of the story, and the words with which a worked solution takes it up.
_Telling = tuple[str, str]
_PLAIN_OPENINGS: tuple[_Telling, ...] = (
    ("{name} has {a} {things}.", "has {a}"),
    ("{name} starts with {a} {things}.", "starts with {a}"),
)
_GROUP_OPENINGS: tuple[_Telling, ...] = (
    ("{name} has {a} bags with {b} {things} each.", "{a} bags with {b}"),
    ("{name} fills {a} boxes with {b} {things} each.", "{a} boxes with {b}"),
)
_SUM_OPENINGS: tuple[_Telling, ...] = (
    ("{name} has {a} red {things} and {b} blue {things}.", "{a} red and {b} blue"),
    ("{name} has {a} big {things} and {b} small {things}.", "{a} big and {b} small"),
)
_GAINS: tuple[_Telling, ...] = (
    ("{She} buys {n} more.", "buys {n}"),
    ("{She} finds {n} more.", "finds {n}"),
    ("{She} gets {n} from {friend}.", "gets {n}"),
)
_LOSSES: tuple[_Telling, ...] = (
    ("{She} loses {n} of them.", "loses {n}"),
    ("{She} gives {n} to {friend}.", "gives {n}"),
    ("{She} sells {n} to {friend}.", "sells {n}"),
)
_DOUBLINGS: tuple[_Telling, ...] = (("Then {she} doubles the number of {things}.", "doubles"),)
_HALVINGS: tuple[_Telling, ...] = (("Half of the {things} break.", "half"),)
_COUNT_ENDING: _Telling = ("How many {things} does {name} have now?", "")
_PRICE_ENDING: _Telling = ("{She} sells all for {n} dollars each. How many dollars does {she} get?", "for {n} dollars")
_SHARE_ENDING: _Telling = ("{n} friends share them. How many {things} does each friend get?", "{n} friends")
_MORE_ENDING: _Telling = ("{rival} has {n} more than {name}. How many {things} does {rival} have?", "{n} more")
_FEWER_ENDING: _Telling = ("{rival} has {n} fewer than {name}. How many {things} does {rival} have?", "{n} fewer")
_TOGETHER_ENDING: _Telling = ("{rival} has {n} more than {name}. How many {things} do they have together?", "{n} more")


@dataclass(frozen=True)
class Step:
    """One line of a worked solution: what happens, and `left operator right = result`."""

    clause: str
    left: int
    operator: Operator
    right: int

    @property
    def result(self) -> int:
        match self.operator:
            case "+":
                return self.left + self.right
            case "-":
                return self.left - self.right
            case "*":
                return self.left * self.right
            case "/":
                return self.left // self.right

    @property
    def equation(self) -> str:
        return f"{self.left} {self.operator} {self.right} = {self.result}"


@dataclass(frozen=True)
class Problem:
    """A question, and its worked solution whose last line is `#### N`."""

    question: str
    answer: str
    steps: tuple[Step, ...]

    @property
    def result(self) -> int:
        return self.steps[-1].result


_MERE_NAMES = {
    **dict.fromkeys(_GIRLS + _BOYS, "Mia"),
    **dict.fromkeys(_THINGS, "apples"),
    **{"He": "She", "he": "she", "him": "her"},
}
_MERE_NAME = re.compile(rf"\b({'|'.join(_MERE_NAMES)})\b")


def canonical(text: str) -> str:
    """See `a2rl.task.Preparer`: every person is Mia, and has apples. Numbers are no mere names."""
    return _MERE_NAME.sub(lambda found: _MERE_NAMES[found[0]], text)


def generate(n: int, seed: int, split: Split) -> list[Problem]:
    """`n` problems of one split with pairwise different questions."""
    rng = random.Random(f"gsm8k-mini/{split}/{seed}")
    problems: dict[str, Problem] = {}
    while len(problems) < n:
        problem = _draw(rng, split)
        problems.setdefault(problem.question, problem)
    return list(problems.values())


def pretraining_text(seed: int) -> Iterator[str]:
    """Documents that teach the skills (sums, stories worked out) but not the benchmark's format.

    A quiz mostly asks for the bare result, so that the base model blurts out an answer where working step by step
    would have been right: that is what post-training can mend.
    """
    rng = random.Random(f"gsm8k-mini/pretraining/{seed}")
    for document in rng.choices((_echo, _sums, _worked_story, _quiz), weights=_KINDS, k=PRETRAINING_DOCUMENTS):
        yield document(rng)


def _sums(rng: random.Random) -> str:
    return "Sums: " + "; ".join(_random_step(rng).equation for _ in range(8))


def _echo(rng: random.Random) -> str:
    """Something said twice: the shortest lesson in looking a thing up in the text before."""
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
    """A random problem whose skeleton belongs to `pool`; `weights`: how often it has how many steps."""
    while True:
        (steps,) = rng.choices(list(weights), weights=list(weights.values()))
        story = _tell(rng, steps)
        skeleton = " ".join(story.sentences)
        if len(story.steps) == steps and _pool_of(skeleton) == pool:
            return _cast(rng, skeleton, story.steps)


def _pool_of(skeleton: str) -> _Pool:
    byte = hashlib.sha256(skeleton.encode()).digest()[0]
    return next(pool for pool, bound in _POOL_BOUNDS if byte < bound)


def _cast(rng: random.Random, skeleton: str, steps: list[Step]) -> Problem:
    """Fill people and things into a skeleton."""
    girl = rng.random() < 0.5
    name = rng.choice(_GIRLS if girl else _BOYS)
    friend, rival = rng.sample([other for other in _GIRLS + _BOYS if other != name], 2)
    pronouns = {"She": "She", "she": "she", "her": "her"} if girl else {"She": "He", "she": "he", "her": "him"}
    question = skeleton.format(name=name, friend=friend, rival=rival, things=rng.choice(_THINGS), **pronouns)
    lines = [f"- {step.clause}: {step.equation}" for step in steps]
    return Problem(question, "\n".join([*lines, f"#### {steps[-1].result}"]), tuple(steps))


def _tell(rng: random.Random, steps: int) -> "_Story":
    """A story of `steps` steps; of fewer where the numbers drawn left no way on, and the caller draws again."""
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


class _Keep(dict[str, object]):
    """Leaves the fields that it does not know in the text: numbers go in first, people and things later."""

    def __missing__(self, key: str) -> str:
        return f"{{{key}}}"


class _Story:
    """A quantity and what happens to it: every sentence that changes it adds one step."""

    def __init__(self, rng: random.Random, value: int = 0) -> None:
        self.rng = rng
        self.value = value
        self.sentences: list[str] = []
        self.clauses: list[str] = []
        self.steps: list[Step] = []

    def say(self, tellings: tuple[_Telling, ...], **numbers: int) -> None:
        sentence, clause = self.rng.choice(tellings)
        self.sentences.append(sentence.format_map(_Keep(numbers)))
        self.clauses.append(clause.format(**numbers))

    def step(self, operator: Operator, right: int) -> None:
        """Account for all that was said since the last step."""
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

    def gain(self, tellings: tuple[_Telling, ...] = _GAINS) -> None:
        if self.value + LARGEST_CHANGE <= LARGEST_NUMBER:
            more = self.rng.randint(2, LARGEST_CHANGE)
            self.say(tellings, n=more)
            self.step("+", more)

    def lose(self, tellings: tuple[_Telling, ...] = _LOSSES) -> None:
        if self.value > 2:
            fewer = self.rng.randint(2, min(LARGEST_CHANGE, self.value - 1))
            self.say(tellings, n=fewer)
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
