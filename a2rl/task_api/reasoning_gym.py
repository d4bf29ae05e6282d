"""Procedural tasks: the generators of the package reasoning_gym, one task each.

    --task reasoning_gym:spell_backward
    --task 'reasoning_gym:chain_sum?min_terms=3&max_terms=5'

Which part of the data an item belongs to follows from its question: training, the public eval set, the eval sets that
are drawn from secret seeds, or their twins. So no item of one is in another.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from a2rl.core.errors import TaskDefinitionError, UsageError
from a2rl.task_api.contract import TWINS
from a2rl.task_api.packages import EVALUATES, EXAMINED, PackageTask, fill
from a2rl.task_api.rows import Row, write_eval_rows, write_rows

VERSION = "0.1.25"
"""What `scripts/setup_environment.sh tasks` installs."""
TRAIN_ITEMS, EVAL_ITEMS = 2000, 200
POOLS = {"train": range(0, 128), "eval": range(128, 160), "drawn": range(160, 208), "twins": range(208, 256)}
"""The pool of an item by the first byte of a digest of its question."""
AT_ONCE = 60
"""Items that are made by one request."""
MOST_ROUNDS = 12
LONGEST_PROMPT = 3000
FEWEST_DIFFERENT = 0.9


class Generator(PackageTask):
    """A generator with its parameters. Many scorers give a part to answers that only look like one, or to numbers that
    are wrong but near: see `floor`."""

    package, work, floor = "reasoning_gym", "ReasoningGym", 1.0

    def prepare(self, items: ModuleType, visible: Path, hidden: Path) -> None:
        """Writes the training data and the public eval set."""
        train, evaluation = self.rows("public", "train", TRAIN_ITEMS), self.rows("public", "eval", EVAL_ITEMS)
        write_rows(items, train, evaluation, visible, hidden)

    def draw(self, seed: str, hidden: Path) -> None:
        """Writes an eval set from a secret seed."""
        write_eval_rows(self.rows(seed, "twins" if seed.endswith(TWINS) else "drawn", EVAL_ITEMS), hidden)

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
        return [row for reply in self.ask(asked) for row in self.needed(reply, "rows")]


def write_task(name: str, parameters: Mapping[str, Any], folder: Path) -> Path:
    """Writes a task's folder for a generator that is fit for grading, and returns it; see `packages.write_task`."""
    if not name.isidentifier():
        raise UsageError(f"{name!r} names no generator: write reasoning_gym:NAME")
    generator = Generator(name, parameters)
    sample = generator.made(random.Random(EXAMINED), EXAMINED)
    if problems := list(_problems(generator, sample, set(generator.examined()["calls"]))):
        raise TaskDefinitionError(f"it is not fit for grading: {'; '.join(problems)}")
    return fill(
        folder / f"rg_{name}",
        _FILES,
        name=name,
        parameters=repr(dict(parameters)),
        tokens=min(1024, 32 + max(len(row["answer"]) for row in sample)),
        version=VERSION,
        floor=Generator.floor,
        train_items=f"{TRAIN_ITEMS:,}",
        eval_items=EVAL_ITEMS,
    )


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
    yield from generator.unfit(rows, [row["answer"] for row in rows])


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
    value = float(made.score_answer(answer_of(answer), row["entry"]))
    return value if value >= $floor else 0.0
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
text. The package's own scorer decides what it earns, from 0 to 1; a value below $floor counts as 0. The eval set is
drawn from a secret seed.
""",
}
