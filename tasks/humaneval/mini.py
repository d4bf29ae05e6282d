r'''The mini variant of humaneval: one-line functions to write, and the text that the base model `tiny` grew up on.

Contract: everything is a function of its seed. A problem is told by its docstring without the argument's name (its
canonical form), and where that one may be read (by the base model, in training, in the eval set) follows from its own
hash, so that no eval problem is ever a training or pretraining problem under another name of the function or of its
argument. Every kind of problem has its share in each of the three; some combinations of skills are kept for the eval
set altogether.

    problem = generate(1, seed=0, split="train")[0]
    problem.prompt + problem.solution
    def make(nums):
        """The sum of nums below 7."""
        return sum(x for x in nums if x < 7)
'''

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Literal

Split = Literal["train", "eval"]
_Pool = Literal["train", "eval", "pretraining"]
_Kind = Literal["number", "list", "text", "words"]

TESTS = 6
"""Assertions on a problem: enough to tell `>` from `>=` and most slices from their neighbours."""
COMBINED_SHARE = 0.35
"""Problems that combine skills: what is counted or summed, of which items, changed how."""
PRETRAINING_DOCUMENTS = 6000
NOTES_SHARE = 0.45
"""Share of the pretraining documents that are notes: the skills, but no function."""
FINISHED_SHARE = 0.6
FINISHED = ("plus", "minus", "times", "is above", "is below", "first", "last", "append", "has", "first letters",
            "last letters", "repeat")  # fmt: skip
"""Families whose functions the pretraining text finishes, and the share that they have of the functions in it. Of the
others it shows empty bodies: a base model that knows what to write, and mostly writes `pass`, is what post-training can
mend."""
LARGEST_CONSTANT = 12

EVAL_SHARE, TRAIN_SHARE = 0.25, 0.45
"""Of a family's canonical docstrings; the base model reads the rest. One that is alone is for training."""

_NAMES = ("solve", "make", "find", "get", "run", "work", "build", "f")
_ARGUMENTS: dict[_Kind, tuple[str, ...]] = {
    "number": ("n", "a", "num", "value"),
    "list": ("nums", "items", "values", "data"),
    "text": ("s", "text", "word", "line"),
    "words": ("s", "text", "line"),
}
_LETTERS = "bcdeot"
"""None that is an argument's name too."""
_WORDS = ("cat", "boat", "toast", "seed", "beds", "coats", "dot", "tea", "oats", "decade", "test", "bottles")


@dataclass(frozen=True)
class Family:
    """One kind of problem. In both texts {a} is the argument, {k} and {m} are numbers, {c} and {d} are letters."""

    name: str
    takes: _Kind
    doc: str
    returns: str
    largest: int = LARGEST_CONSTANT
    """Of the numbers {k} and {m}."""
    combined: bool = False


@dataclass(frozen=True)
class Problem:
    """A function to write: as in HumanEval, `prompt + solution` is the program and `check(candidate)` tests it."""

    prompt: str
    solution: str
    test: str
    entry_point: str
    family: Family


_SINGLE = (
    Family("plus", "number", "{a} plus {k}", "{a} + {k}"),
    Family("minus", "number", "{a} minus {k}", "{a} - {k}"),
    Family("times", "number", "{a} times {k}", "{a} * {k}"),
    Family("quotient", "number", "{a} divided by {k}, rounded down", "{a} // {k}"),
    Family("remainder", "number", "The remainder of {a} by {k}", "{a} % {k}"),
    Family("power", "number", "{a} to the power of {k}", "{a} ** {k}"),
    Family("distance", "number", "How far {a} is from {k}", "abs({a} - {k})"),
    Family("at least", "number", "{a}, but at least {k}", "max({a}, {k})"),
    Family("at most", "number", "{a}, but at most {k}", "min({a}, {k})"),
    Family("is multiple", "number", "Whether {a} is a multiple of {k}", "{a} % {k} == 0"),
    Family("is above", "number", "Whether {a} is above {k}", "{a} > {k}"),
    Family("is below", "number", "Whether {a} is below {k}", "{a} < {k}"),
    Family("times plus", "number", "{a} times {k}, plus {m}", "{a} * {k} + {m}"),
    Family("square plus", "number", "The square of {a}, plus {k}", "{a} * {a} + {k}"),
    Family("count to", "number", "The numbers from {k} to {a}", "list(range({k}, {a} + 1))"),
    Family("first", "list", "The first {k} of {a}", "{a}[:{k}]", 6),
    Family("last", "list", "The last {k} of {a}", "{a}[-{k}:]", 6),
    Family("not first", "list", "All but the first {k} of {a}", "{a}[{k}:]", 6),
    Family("not last", "list", "All but the last {k} of {a}", "{a}[:-{k}]", 6),
    Family("one in", "list", "One in {k} of {a}", "{a}[::{k}]", 6),
    Family("item", "list", "Item {k} of {a}, counted from 0", "{a}[{k}]", 5),
    Family("occurrences", "list", "How many of {a} are {k}", "{a}.count({k})"),
    Family("has", "list", "Whether {k} is in {a}", "{k} in {a}"),
    Family("append", "list", "{a} with {k} at the end", "{a} + [{k}]"),
    Family("prepend", "list", "{a} with {k} in front", "[{k}] + {a}"),
    Family("smallest", "list", "The {k} smallest of {a}", "sorted({a})[:{k}]", 6),
    Family("largest", "list", "The {k} largest of {a}", "sorted({a})[-{k}:]", 6),
    Family("sum plus", "list", "The sum of {a}, plus {k}", "sum({a}) + {k}"),
    Family("maximum plus", "list", "The largest of {a}, plus {k}", "max({a}) + {k}"),
    Family("minimum minus", "list", "The smallest of {a}, minus {k}", "min({a}) - {k}"),
    Family("all above", "list", "Whether all of {a} are above {k}", "all(x > {k} for x in {a})"),
    Family("any above", "list", "Whether any of {a} is above {k}", "any(x > {k} for x in {a})"),
    Family("backwards", "list", "The first {k} of {a}, backwards", "{a}[:{k}][::-1]", 6),
    Family("different", "list", "How many different items {a} has, plus {k}", "len(set({a})) + {k}"),
    Family("first letters", "text", "The first {k} letters of {a}", "{a}[:{k}]", 6),
    Family("last letters", "text", "The last {k} letters of {a}", "{a}[-{k}:]", 6),
    Family("capitals", "text", "The first {k} letters of {a} in capitals", "{a}[:{k}].upper()", 6),
    Family("repeat", "text", "{a} written {k} times", "{a} * {k}", 9),
    Family("count letter", "text", "How often {c} is in {a}", "{a}.count('{c}')"),
    Family("starts with", "text", "Whether {a} starts with {c}", "{a}.startswith('{c}')"),
    Family("ends with", "text", "Whether {a} ends with {c}", "{a}.endswith('{c}')"),
    Family("replace", "text", "{a} with {d} for every {c}", "{a}.replace('{c}', '{d}')"),
    Family("remove", "text", "{a} without any {c}", "{a}.replace('{c}', '')"),
    Family("split", "text", "The parts of {a} between any {c}", "{a}.split('{c}')"),
    Family("position", "text", "Where the first {c} is in {a}", "{a}.find('{c}')"),
    Family("between", "text", "{a} between {c} and {d}", "'{c}' + {a} + '{d}'"),
    Family("join", "words", "The words of {a} joined by {c}", "'{c}'.join({a}.split())"),
    Family("long words", "words", "The words of {a} with more than {k} letters",
           "[w for w in {a}.split() if len(w) > {k}]", 6),
    Family("words with", "words", "The words of {a} with {c}", "[w for w in {a}.split() if '{c}' in w]"),
)  # fmt: skip

_CHANGES = {"": "x", "the squares of ": "x * x", "{m} times ": "x * {m}", "{m} plus ": "x + {m}"}
_CHOICES = {
    "": "",
    " above {k}": " if x > {k}",
    " below {k}": " if x < {k}",
    " other than {k}": " if x != {k}",
    " divisible by {k}": " if x % {k} == 0",
}
_RESULTS = {"each of ": "[{}]", "the sum of ": "sum({})", "a count of ": "len([{}])"}
_TRIVIAL = {("each of ", ""), ("the sum of ", "")}
"""Without a choice there is nothing in these that needs a comprehension."""
_EVAL_ONLY = {
    ("the sum of ", "the squares of ", " below {k}"),
    ("the sum of ", "{m} times ", " above {k}"),
    ("each of ", "the squares of ", " divisible by {k}"),
    ("each of ", "{m} plus ", " other than {k}"),
    ("the sum of ", "{m} plus ", " divisible by {k}"),
}
"""Combinations whose parts are trained and which themselves are not."""


def _combinations() -> Iterator[tuple[bool, Family]]:
    """Every combination, and whether only the eval set has it."""
    for result, frame in _RESULTS.items():
        for change, changed in _CHANGES.items():
            for choice, chosen in _CHOICES.items():
                counts = result == "a count of "
                if (change == "" and (result, choice) in _TRIVIAL) or (counts and (change or not choice)):
                    continue
                doc = f"{result}{change}{{a}}{choice}"
                returns = frame.format(f"{changed} for x in {{a}}{chosen}")
                name = f"{result}{change}items{choice}".replace("{k}", "k").replace("{m}", "m")
                yield (
                    (result, change, choice) in _EVAL_ONLY,
                    Family(name, "list", doc[0].upper() + doc[1:], returns, combined=True),
                )


@cache
def families(pool: _Pool, combined: bool) -> tuple[Family, ...]:
    """The kinds of problems that a pool has."""
    if not combined:
        return _SINGLE
    return tuple(family for kept, family in _combinations() if pool == "eval" or not kept)


_DEFINED = re.compile(r'def \w+\(\w+\):\n    """(.*)"""')
_ARGUMENT = re.compile(rf"\b({'|'.join({name for names in _ARGUMENTS.values() for name in names})})\b")


def canonical(text: str) -> str:
    """See `a2rl.task.Preparer`: functions as notes, which name no function, and every argument as `x`."""
    return _ARGUMENT.sub("x", _DEFINED.sub(r"# \1", text))


def generate(n: int, seed: int, split: Split) -> list[Problem]:
    """`n` problems of one split with pairwise different prompts; in eval with different canonical docstrings.

    Args:
        n: up to what there is: some 600 of eval.
        seed: of all of them.
        split: the two share no docstring.
    """
    rng = random.Random(f"humaneval-mini/{split}/{seed}")
    problems: dict[str, Problem] = {}
    while len(problems) < n:
        doc, problem = _draw(rng, split)
        problems.setdefault(canonical(doc) if split == "eval" else problem.prompt, problem)
    return list(problems.values())


def pretraining_text(seed: int) -> Iterator[str]:
    """Documents that teach the skills as notes, and the benchmark's format mostly with empty bodies."""
    rng = random.Random(f"humaneval-mini/pretraining/{seed}")
    for _ in range(PRETRAINING_DOCUMENTS):
        if rng.random() < NOTES_SHARE:
            yield "\n".join(_note(rng) for _ in range(2))
        else:
            yield _function(rng, finished=rng.random() < FINISHED_SHARE)


def _function(rng: random.Random, finished: bool) -> str:
    while True:
        _, problem = _draw(rng, "pretraining", 0.0 if finished else COMBINED_SHARE)
        if (problem.family.name in FINISHED) == finished:
            return problem.prompt + (problem.solution if finished else "    pass\n")


def _note(rng: random.Random) -> str:
    """A docstring and its expression, without a function around them."""
    doc, problem = _draw(rng, "pretraining")
    return f"# {doc}\n{problem.solution.removeprefix('    return ').strip()}"


def _draw(rng: random.Random, pool: _Pool, combined_share: float = COMBINED_SHARE) -> tuple[str, Problem]:
    """A docstring that belongs to `pool`, and its problem."""
    while True:
        family = rng.choice(families(pool, combined=rng.random() < combined_share))
        argument, values = rng.choice(_ARGUMENTS[family.takes]), _constants(rng, family)
        doc = _told(family, argument, values)
        if _pools(family)[canonical(doc)] == pool:
            return doc, _problem(rng, family, doc, argument, values)


def _told(family: Family, argument: str, values: dict[str, Any]) -> str:
    return family.doc.format(a=argument, **values) + "."


@cache
def _pools(family: Family) -> dict[str, _Pool]:
    """Where each canonical docstring of a family may be read: in an order drawn by hash, first eval's, then train's."""
    numbers, argument = range(2, family.largest + 1), _ARGUMENTS[family.takes][0]
    domains = {"k": numbers, "m": numbers, "c": _LETTERS, "d": _LETTERS}
    used = {name: domain if f"{{{name}}}" in family.doc else domain[:1] for name, domain in domains.items()}
    told = {canonical(_told(family, argument, dict(zip(used, each, strict=True)))) for each in product(*used.values())}
    docs = sorted(told, key=lambda doc: hashlib.sha256(doc.encode()).digest())
    if family in _kept():
        return dict.fromkeys(docs, "eval")
    first = round(EVAL_SHARE * len(docs)) if len(docs) > 1 else 0
    last = first + max(1, round(TRAIN_SHARE * len(docs)))
    return {
        doc: "eval" if place < first else "train" if place < last else "pretraining" for place, doc in enumerate(docs)
    }


@cache
def _kept() -> frozenset[Family]:
    return frozenset(family for kept, family in _combinations() if kept)


def _constants(rng: random.Random, family: Family) -> dict[str, Any]:
    k, m = rng.sample(range(2, family.largest + 1), 2)
    c, d = rng.sample(_LETTERS, 2)
    return {"k": k, "m": m, "c": c, "d": d}


def _problem(rng: random.Random, family: Family, doc: str, argument: str, values: dict[str, Any]) -> Problem:
    name, body = rng.choice(_NAMES), family.returns.format(a=argument, **values)
    reference = eval(f"lambda {argument}: {body}")
    cases: list[tuple[Any, Any]] = []
    # No constant and no argument handed back may pass.
    while len({repr(result) for _, result in cases}) < 2 or all(given == result for given, result in cases):
        inputs = [_input(rng, family, values) for _ in range(TESTS)]
        cases = [(given, reference(given)) for given in inputs]
    checks = "".join(f"    assert candidate({given!r}) == {result!r}\n" for given, result in cases)
    return Problem(
        prompt=f'def {name}({argument}):\n    """{doc}"""\n',
        solution=f"    return {body}\n",
        test=f"def check(candidate):\n{checks}",
        entry_point=name,
        family=family,
    )


def _input(rng: random.Random, family: Family, values: dict[str, Any]) -> Any:
    """An argument to test with; the numbers and letters of the docstring turn up in it."""
    match family.takes:
        case "number":
            return rng.choice((values["k"], values["k"] + rng.randint(-1, 1), rng.randint(0, 60)))
        case "list":
            k = values["k"]
            low, high = rng.choice(((0, k), (0, 20), (k + 1, k + 20)))  # so that "all" and "any" are true and false
            numbers = [rng.randint(low, high) for _ in range(rng.randint(6, 9))]
            return [*numbers, *rng.choice(([], [k], [k, k])), numbers[0]]
        case "text":
            return rng.choice((values["c"], "")) + rng.choice(_WORDS) + rng.choice((values["c"], rng.choice(_WORDS)))
        case "words":
            return " ".join(rng.choice(_WORDS) + rng.choice((values["c"], "")) for _ in range(rng.randint(3, 6)))
