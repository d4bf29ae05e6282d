r'''The mini variant of humaneval: one-line functions to write, and the pretraining text of the base model `tiny`.

Contract: everything is a function of its seed. The identity of a problem is its docstring without the argument's name
(its canonical form). A hash of it decides whether the problem belongs to pretraining, training or the eval set, so that
no eval problem occurs elsewhere with another name of the function or of its argument. Every kind of problem has a share
in each of the three; some combinations of skills are in the eval set only.

    problem = generate(1, seed=0, split="train")[0]
    problem.prompt + problem.solution
    def make(nums):
        """The sum of nums below 7."""
        return sum(x for x in nums if x < 7)
'''

import hashlib
import random
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Literal

Split = Literal["train", "eval"]
_Pool = Literal["train", "eval", "pretraining"]
_Kind = Literal["number", "list", "text", "words"]

TESTS = 6
"""Number of assertions: enough to distinguish `>` from `>=` and most similar slices."""
COMBINED_SHARE = 0.35
"""Share of the problems that combine skills: select items, change them, and count or sum them."""
PRETRAINING_DOCUMENTS = 6000
NOTES_SHARE = 0.45
"""Share of the pretraining documents that are notes, which have the skills but no function."""
FINISHED_SHARE = 0.6
FINISHED = ("plus", "minus", "times", "is above", "is below", "first", "last", "append", "has", "first letters",
            "last letters", "repeat")  # fmt: skip
"""Families whose functions are complete in the pretraining text, and their share of its functions. The others have
empty bodies, so that the base model often writes `pass` although it knows the skill. Post-training can improve that."""
LARGEST_CONSTANT = 12

EVAL_SHARE, TRAIN_SHARE = 0.25, 0.45
"""Shares of a family's canonical docstrings; the rest is for pretraining. A single one is for training."""

_NAMES = ("solve", "make", "find", "get", "run", "work", "build", "f")
_ARGUMENTS: dict[_Kind, tuple[str, ...]] = {
    "number": ("n", "a", "num", "value"),
    "list": ("nums", "items", "values", "data"),
    "text": ("s", "text", "word", "line"),
    "words": ("s", "text", "line"),
}
_LETTERS = "bcdeot"
"""Without names of arguments."""
_WORDS = ("cat", "boat", "toast", "seed", "beds", "coats", "dot", "tea", "oats", "decade", "test", "bottles")


@dataclass(frozen=True)
class Family:
    """One kind of problem. In both texts {a} is the argument, {k} and {m} are numbers, {c} and {d} are letters."""

    name: str
    takes: _Kind
    doc: str
    returns: str
    largest: int = LARGEST_CONSTANT
    """Largest value of {k} and {m}."""
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
"""Combinations that need no comprehension unless they select items."""
_EVAL_ONLY = {
    ("the sum of ", "the squares of ", " below {k}"),
    ("the sum of ", "{m} times ", " above {k}"),
    ("each of ", "the squares of ", " divisible by {k}"),
    ("each of ", "{m} plus ", " other than {k}"),
    ("the sum of ", "{m} plus ", " divisible by {k}"),
}
"""Combinations that are not in training, although their parts are."""


def _combinations() -> Iterator[tuple[bool, Family]]:
    """Yields every combination, and whether only the eval set has it."""
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
    """Returns the kinds of problems of a pool."""
    if not combined:
        return _SINGLE
    return tuple(family for kept, family in _combinations() if pool == "eval" or not kept)


_DEFINED = re.compile(r'def \w+\(\w+\):\n    """(.*)"""')
_ARGUMENT = re.compile(rf"\b({'|'.join({name for names in _ARGUMENTS.values() for name in names})})\b")


def canonical(text: str) -> str:
    """See `a2rl.task_api.contract.Preparer`: functions as notes, which name no function, and every argument as `x`."""
    return _ARGUMENT.sub("x", _DEFINED.sub(r"# \1", text))


def generate(n: int, seed: int | str, split: Split, but: Collection[str] = ()) -> list[Problem]:
    """Returns `n` problems of one split with different prompts; in eval with different canonical docstrings.

    Args:
        n: at most the number of problems, which is about 950 for eval.
        seed: for all problems.
        split: the two share no docstring.
        but: canonical texts that none of the problems has.
    """
    rng = random.Random(f"humaneval-mini/{split}/{seed}")
    problems: dict[str, Problem] = {}
    while len(problems) < n:
        doc, problem = _draw(rng, split)
        if but and canonical(problem.prompt) in but:
            continue
        problems.setdefault(canonical(doc) if split == "eval" else problem.prompt, problem)
    return list(problems.values())


def pretraining_text(seed: int) -> Iterator[str]:
    """Yields documents that teach the skills as notes, and the benchmark's format mostly with empty bodies."""
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
    """Returns a docstring and its expression, without a function."""
    doc, problem = _draw(rng, "pretraining")
    return f"# {doc}\n{problem.solution.removeprefix('    return ').strip()}"


def _draw(rng: random.Random, pool: _Pool, combined_share: float = COMBINED_SHARE) -> tuple[str, Problem]:
    """Draws a docstring that belongs to `pool`, and its problem."""
    while True:
        family = rng.choice(families(pool, combined=rng.random() < combined_share))
        argument, values = rng.choice(_ARGUMENTS[family.takes]), _constants(rng, family)
        doc = _docstring(family, argument, values)
        if _pools(family)[canonical(doc)] == pool:
            return doc, _problem(rng, family, doc, argument, values)


def _docstring(family: Family, argument: str, values: dict[str, Any]) -> str:
    return family.doc.format(a=argument, **values) + "."


@cache
def _pools(family: Family) -> dict[str, _Pool]:
    """Returns the pool of each canonical docstring of a family: by hash order first eval, then train, then the rest."""
    numbers, argument = range(2, family.largest + 1), _ARGUMENTS[family.takes][0]
    domains = {"k": numbers, "m": numbers, "c": _LETTERS, "d": _LETTERS}
    used = {name: domain if f"{{{name}}}" in family.doc else domain[:1] for name, domain in domains.items()}
    told = {
        canonical(_docstring(family, argument, dict(zip(used, each, strict=True)))) for each in product(*used.values())
    }
    docs = sorted(told, key=lambda doc: hashlib.sha256(doc.encode()).digest())
    if family in _eval_only_families():
        return dict.fromkeys(docs, "eval")
    first = round(EVAL_SHARE * len(docs)) if len(docs) > 1 else 0
    last = first + max(1, round(TRAIN_SHARE * len(docs)))
    return {
        doc: "eval" if place < first else "train" if place < last else "pretraining" for place, doc in enumerate(docs)
    }


@cache
def _eval_only_families() -> frozenset[Family]:
    return frozenset(family for kept, family in _combinations() if kept)


def _constants(rng: random.Random, family: Family) -> dict[str, Any]:
    k, m = rng.sample(range(2, family.largest + 1), 2)
    c, d = rng.sample(_LETTERS, 2)
    return {"k": k, "m": m, "c": c, "d": d}


def _problem(rng: random.Random, family: Family, doc: str, argument: str, values: dict[str, Any]) -> Problem:
    name, body = rng.choice(_NAMES), family.returns.format(a=argument, **values)
    reference = eval(f"lambda {argument}: {body}")
    cases: list[tuple[Any, Any]] = []
    # A function that returns a constant or its argument must not pass.
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
    """Draws an argument for a test, which contains the numbers and letters of the docstring."""
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
