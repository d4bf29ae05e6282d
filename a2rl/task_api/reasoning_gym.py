"""Procedural tasks: the generators of the package reasoning_gym, one task each.

    --task reasoning_gym:spell_backward
    --task 'reasoning_gym:chain_sum?min_terms=3&max_terms=5'

A generator becomes a task of the user's own: a folder with the usual four files. Which part of the data an item belongs
to follows from its question: training, the public eval set, or the eval sets that are drawn from secret seeds. So no
item of one is in another. What scores is the package's own code, in a process that can only compute
(generator_process.py).

Not every generator is fit for grading, so each is examined before it becomes a task: see `_problems`.
"""

import hashlib
import json
import random
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any, NamedTuple

import a2rl
from a2rl.core.errors import InfrastructureError, TaskDefinitionError, UsageError
from a2rl.core.processes import tied_to_parent
from a2rl.core.settings import Settings
from a2rl.task_api.generator_process import START
from a2rl.task_api.rows import Row, write_eval_rows, write_rows

VERSION = "0.1.25"
"""What `make setup-tasks` installs."""
TRAIN_ITEMS, EVAL_ITEMS, EXAMINED = 2000, 200, 60
POOLS = {"train": range(0, 128), "eval": range(128, 160), "drawn": range(160, 256)}
"""The pool of an item by the first byte of a digest of its question."""
AT_ONCE = 60
"""Items that are made by one request."""
MOST_ROUNDS = 12
TIMEOUT_S = 900.0
LONGEST_PROMPT = 3000
FLOOR = 0.5
"""Values below this are 0: many scorers give a part to any answer that looks like one."""
MOST_FOR_WORD, MOST_FOR_OTHERS = 0.05, 0.6
"""Mean values that a wrong word, and a constant or another item's answer, may reach."""
FEWEST_DIFFERENT = 0.9
EVALUATES = frozenset({"eval", "exec", "compile", "parse_expr", "sympify", "S", "__import__"})
"""Functions by which a scorer would execute an answer, which could then decide its own value."""


class Generator(NamedTuple):
    """A generator with its parameters: the functions of `prepare.py`, and what `grade.py` needs."""

    name: str
    parameters: Mapping[str, Any]

    def prepare(self, items: ModuleType, visible: Path, hidden: Path) -> None:
        """Writes the training data and the public eval set."""
        train, evaluation = self.rows("public", "train", TRAIN_ITEMS), self.rows("public", "eval", EVAL_ITEMS)
        write_rows(items, train, evaluation, visible, hidden)

    def draw(self, seed: str, hidden: Path) -> None:
        """Writes an eval set from a secret seed."""
        write_eval_rows(self.rows(seed, "drawn", EVAL_ITEMS), hidden)

    def rows(self, seed: str, pool: str, count: int) -> list[Row]:
        """Makes items of a pool, all different.

        Raises:
            TaskDefinitionError: There are not so many.
        """
        seeds, found = random.Random(f"{seed}/{pool}"), dict[str, Row]()
        for _ in range(MOST_ROUNDS):
            for row in self.made(seeds, 256 * (count - len(found)) // len(POOLS[pool]) + 16):
                if hashlib.sha256(row["question"].encode()).digest()[0] in POOLS[pool] and len(found) < count:
                    found.setdefault(row["question"], row)
            if len(found) == count:
                return list(found.values())
        raise TaskDefinitionError(
            f"reasoning_gym's {self.name} makes too few different items with these parameters ({len(found)} of "
            f"{count}): take others"
        )

    def made(self, seeds: random.Random, count: int) -> list[Row]:
        """Returns at least so many items.

        Item i of the package's data set of some seed is the item of seed + i, so data sets whose seeds are near each
        other share most of their items. These seeds come from a wide range.
        """
        asked = [{"make": seeds.randrange(1 << 31), "count": AT_ONCE} for _ in range(0, count, AT_ONCE)]
        return [row for reply in self._ask(asked) for row in _needed(reply, "rows")]

    def rewards(self, answered: Sequence[tuple[Row, str]]) -> list[float | Exception]:
        """Returns the value of each answer to a row, or why the scorer failed."""
        return [
            (value if value >= FLOOR else 0.0) if isinstance(value := reply.get("value"), float) else _failure(reply)
            for reply in self._ask([{"score": answer, "entry": row["entry"]} for row, answer in answered])
        ]

    def mean(self, rows: Sequence[Row], answers: Sequence[str]) -> float:
        """Returns the mean value of answers.

        Raises:
            TaskDefinitionError: The scorer failed.
        """
        values = self.rewards(list(zip(rows, answers, strict=True)))
        for value in values:
            if isinstance(value, Exception):
                raise value
        return sum(value for value in values if isinstance(value, float)) / len(values)

    def _ask(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        python = Settings.load().tasks_python
        if not python.is_file():
            raise UsageError("tasks of reasoning_gym need its package: run `make setup-tasks`")
        root = str(Path(a2rl.__file__).parent.parent)
        command = [str(python), "-s", "-P", "-c", START, root, self.name, json.dumps(dict(self.parameters))]
        try:
            done = subprocess.run(
                tied_to_parent(command),
                input="".join(json.dumps(request) + "\n" for request in requests),
                env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"reasoning_gym's {self.name} gave no answer: {error}") from error
        replies = [json.loads(line) for line in done.stdout.splitlines()]
        if len(replies) != len(requests):
            last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise InfrastructureError(f"the process of reasoning_gym's {self.name} ended early: {last[:500]}")
        return replies


def _needed(reply: Mapping[str, Any], key: str) -> Any:
    if key not in reply:
        raise _failure(reply)
    return reply[key]


def _failure(reply: Mapping[str, Any]) -> TaskDefinitionError:
    return TaskDefinitionError(f"reasoning_gym: {reply.get('problem', 'an answer of another kind')}")


def write_task(reference: str, folder: Path) -> Path:
    """Writes a task's folder for a generator that is fit for grading, and returns it.

    Args:
        reference: `NAME` or `NAME?parameter=value&...`, with values as JSON.
        folder: An empty folder.

    Raises:
        UsageError: There is no such generator, a parameter is wrong, or the generator is not fit.
    """
    name, _, query = reference.partition("?")
    if not name.isidentifier():
        raise UsageError(f"{reference!r} names no generator: write reasoning_gym:NAME")
    generator = Generator(name, dict(_parameter(part) for part in query.split("&") if part))
    try:
        sample = generator.made(random.Random(EXAMINED), EXAMINED)
        [examined] = generator._ask([{"examine": True}])
        problems = list(_problems(generator, sample, set(_needed(examined, "calls"))))
    except TaskDefinitionError as error:
        raise UsageError(f"reasoning_gym:{reference} cannot be used: {error}") from error
    if problems:
        raise UsageError(f"reasoning_gym:{reference} is not fit for grading: {'; '.join(problems)}")
    longest = max(len(row["answer"]) for row in sample)
    target = folder / f"rg_{name}"
    target.mkdir(parents=True)
    values = {
        "name": name,
        "parameters": repr(dict(generator.parameters)),
        "tokens": min(1024, 32 + longest),
        "version": VERSION,
        "train_items": f"{TRAIN_ITEMS:,}",
        "eval_items": EVAL_ITEMS,
    }
    for file, text in _FILES.items():
        (target / file).write_text(Template(text).substitute(values), encoding="utf-8")
    return target


def _parameter(part: str) -> tuple[str, Any]:
    key, _, text = part.partition("=")
    try:
        return key, json.loads(text)
    except ValueError:
        return key, text


def _problems(generator: Generator, rows: Sequence[Row], calls: set[str]) -> Iterator[str]:
    """Yields why a generator is not fit for grading."""
    if found := sorted(calls & EVALUATES):
        yield f"its module calls {found[0]}(), by which an answer could decide its own value"
    if any(not isinstance(row["answer"], str) or not row["answer"].strip() for row in rows):
        yield "some items have no answer"
        return
    if len({row["question"] for row in rows}) < FEWEST_DIFFERENT * len(rows):
        yield "its items repeat themselves"
    if max(len(row["question"]) for row in rows) > LONGEST_PROMPT:
        yield f"its questions are longer than {LONGEST_PROMPT:,} characters"
    others = [*(row["answer"] for row in rows[1:]), rows[0]["answer"]]
    for what, answers, most in (
        ("an empty answer", [""] * len(rows), 0.0),
        ("a wrong word", ["no idea"] * len(rows), MOST_FOR_WORD),
        ("the answer 0", ["0"] * len(rows), MOST_FOR_OTHERS),
        ("the answer 1", ["1"] * len(rows), MOST_FOR_OTHERS),
        ("another item's answer", others, MOST_FOR_OTHERS),
    ):
        if (mean := generator.mean(rows, answers)) > most:
            yield f"{what} earns {mean:.2f}"
    if generator.mean(rows, [row["answer"] for row in rows]) < 1:
        yield "its own answers do not earn 1"


_FILES = {
    "task.py": '''"""A generator of reasoning_gym $version."""

from a2rl.task_api.contract import Limits, Task, TaskVariant

TASK = Task(
    id="rg_$name",
    title="$name (reasoning_gym)",
    level=1,
    metric="mean value of the answers",
    mini=TaskVariant(eval_items=$eval_items, limits=Limits(max_new_tokens=$tokens)),
)
''',
    "items.py": '''"""How an item is asked, and what an answer earns; the grader uses the package's own scorer."""

import re


def prompt(row):
    return f"{row['question']}\\n\\nWrite the answer between <answer> and </answer>.\\n"


def gold(row):
    return f"<answer>{row['answer']}</answer>"


def answer_of(text):
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (found[-1] if found else text).strip()


def reward(row, answer):
    try:
        import reasoning_gym
    except ImportError:  # then only the answer that is known counts
        return float(answer_of(answer) == row["answer"].strip())
    made = reasoning_gym.create_dataset("$name", size=1, seed=0, **$parameters)
    return float(made.score_answer(answer_of(answer), row["entry"]))
''',
    "prepare.py": '''"""The data, from the generator."""

from a2rl.task_api.reasoning_gym import Generator

from . import items

GENERATOR = Generator("$name", $parameters)


def prepare(variant, source, visible, hidden):
    GENERATOR.prepare(items, visible, hidden)


def draw(seed, hidden):
    GENERATOR.draw(seed, hidden)
''',
    "grade.py": '''"""Graded by the package's scorer, in a process that can only compute."""

from a2rl.task_api.reasoning_gym import Generator
from a2rl.task_api.rows import RowsGrader

from . import items

_generator = Generator("$name", $parameters)
_grader = RowsGrader(items, lambda pairs: _generator.rewards([(row, items.answer_of(text)) for row, text in pairs]))
item_ids, grade = _grader.item_ids, _grader.grade
score_outputs, gold_outputs = _grader.score_outputs, _grader.gold_outputs
''',
    "description.md": """# $name (reasoning_gym)

The model answers questions of the generator `$name` of the package reasoning_gym, with the parameters $parameters.
`train.jsonl` has $train_items of them: `question`, `answer`, and the whole `entry` as the package has it. `items.py`
says how the model is asked. The answer is what stands between the last `<answer>` and `</answer>`, or else the whole
text. The package's own scorer decides what it earns, from 0 to 1. The eval set is drawn from a secret seed.
""",
}
