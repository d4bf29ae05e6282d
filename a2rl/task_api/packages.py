"""Tasks from packages of others: what all of them have in common.

    --task reasoning_gym:spell_backward          a2rl/task_api/reasoning_gym.py
    --task inspect:inspect_evals/gsm8k           a2rl/task_api/inspect_tasks.py

Each becomes a task of the user's own: a folder with the usual four files. The package makes the items and scores the
answers, in a process that can only compute (package_process.py). Not everything that others offer is fit for grading,
so it is examined before it grades: see `PackageTask.unfit`.
"""

import importlib
import json
import math
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, ClassVar

import a2rl
from a2rl.core.errors import InfrastructureError, TaskDefinitionError, UsageError, last_words
from a2rl.core.processes import tied_to_parent
from a2rl.core.settings import Settings
from a2rl.task_api.package_process import DATA, SECONDS, START
from a2rl.task_api.rows import Reward, Row, value_of

EXAMINED = 60
"""Items that are looked at before a task grades."""
TIMEOUT_S = 900.0
"""How long the package's process may take, besides the processor time of the answers that it scores."""
MOST_FOR_WORD, MOST_FOR_OTHERS = 0.05, 0.6
"""Mean values that a wrong word, and a constant or another item's answer, may reach."""
EVALUATES = frozenset({"eval", "exec", "compile", "parse_expr", "sympify", "S", "__import__"})
"""Functions by which a scorer would execute an answer, which could then decide its own value."""


def write_task(name: str, module: str, folder: Path) -> Path:
    """Writes the folder of such a task, and returns it.

    Args:
        name: `PACKAGE:TASK` or `PACKAGE:TASK?parameter=value&...`, with values as JSON.
        module: The module that makes tasks of this package, by its own `write_task`.
        folder: An empty folder.

    Raises:
        UsageError: There is no such task, a parameter is wrong, or it is not fit for grading.
    """
    task, _, query = name.partition(":")[2].partition("?")
    parameters = dict(_parameter(part) for part in query.split("&") if part)
    try:
        made: Path = importlib.import_module(module).write_task(task, parameters, folder)
    except TaskDefinitionError as error:
        raise UsageError(f"{name} cannot be used: {error}") from error
    return made


def _parameter(part: str) -> tuple[str, Any]:
    key, _, text = part.partition("=")
    try:
        return key, json.loads(text, parse_constant=str)
    except ValueError:
        return key, text


def fill(folder: Path, files: Mapping[str, str], **values: object) -> Path:
    """Makes a folder with files from templates, and returns it."""
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(Template(text).substitute(values), encoding="utf-8")
    return folder


@dataclass(frozen=True)
class PackageTask:
    """A task with its parameters: what `prepare.py` and `grade.py` need."""

    name: str
    parameters: Mapping[str, Any]
    archive: Path | None = None
    """A tar archive that is unpacked into `data` of the folder that the package's process may read."""
    package: ClassVar[str]
    """What it is called in messages."""
    work: ClassVar[str]
    """The class of package_process.py."""
    floor: ClassVar[float] = -math.inf
    """Values below this are 0."""

    def rewards(self, answered: Sequence[tuple[Row, str]]) -> list[Reward]:
        """Returns what each answer to a row earns, or why the scorer failed."""
        replies = self.ask([{"score": answer, "entry": row["entry"]} for row, answer in answered])
        return [self._reward(reply) for reply in replies]

    def _reward(self, reply: Mapping[str, Any]) -> Reward:
        figures = reply.get("figures", {"value": reply.get("value")})
        if not isinstance(figures, dict) or not all(
            isinstance(each, float) and math.isfinite(each) for each in figures.values()
        ):
            return self.failure(reply)
        if len(figures) != 1:
            return figures or self.failure(reply)
        [value] = figures.values()
        return value if value >= self.floor else 0.0

    def means(self, rows: Sequence[Row], answers: Sequence[Sequence[str]]) -> list[float]:
        """Returns the mean value of each of several lists of answers to the same rows.

        Raises:
            TaskDefinitionError: The scorer failed.
        """
        rewards = self.rewards([(row, each) for some in answers for row, each in zip(rows, some, strict=True)])
        values = []
        for reward in rewards:
            if isinstance(reward, BaseException):
                raise reward
            values.append(value_of(reward))
        return [sum(values[start : start + len(rows)]) / len(rows) for start in range(0, len(values), len(rows))]

    def unfit(self, rows: Sequence[Row], answers: Sequence[str]) -> Iterator[str]:
        """Yields why the scorer is not fit for grading, judged by some rows and the right answers to them."""
        wrong = {
            "an empty answer": ([""] * len(rows), 0.0),
            "a wrong word": (["no idea"] * len(rows), MOST_FOR_WORD),
            "the answer 0": (["0"] * len(rows), MOST_FOR_OTHERS),
            "the answer 1": (["1"] * len(rows), MOST_FOR_OTHERS),
            "another item's answer": ([*answers[1:], answers[0]], MOST_FOR_OTHERS),
        }
        *means, right = self.means(rows, [*(texts for texts, _ in wrong.values()), answers])
        for mean, (what, (_, most)) in zip(means, wrong.items(), strict=True):
            if mean > most:
                yield f"{what} earns {mean:.2f}"
        if right < 1:
            yield "its own answers do not earn 1"

    def examined(self) -> dict[str, Any]:
        """Returns what the package says of the task: see package_process.py.

        Raises:
            TaskDefinitionError: There is no such task.
        """
        [found] = self.ask([{"examine": True}])
        self.needed(found, "calls")
        return found

    def needed(self, reply: Mapping[str, Any], key: str) -> Any:
        """Returns a part of a reply.

        Raises:
            TaskDefinitionError: It could not be done.
        """
        if key not in reply:
            raise self.failure(reply)
        return reply[key]

    def failure(self, reply: Mapping[str, Any]) -> TaskDefinitionError:
        """Returns the error that a reply tells of."""
        return TaskDefinitionError(f"{self.package}'s {self.name}: {reply.get('problem', 'an answer of another kind')}")

    def ask(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Has the package's process answer requests; see package_process.py.

        Raises:
            UsageError: The environment of the packages is not there.
            InfrastructureError: The process gave no answer, or ended early.
        """
        python = Settings.load().tasks_python
        if not python.is_file():
            raise UsageError(f"tasks of {self.package} need its package: run `scripts/setup_environment.sh tasks`")
        root = str(Path(a2rl.__file__).parent.parent)
        command = [str(python), "-s", "-P", "-c", START, root, self.work, self.name, json.dumps(dict(self.parameters))]
        try:
            with tempfile.TemporaryDirectory() as home:
                if self.archive and self.archive.is_file():
                    with tarfile.open(self.archive) as tar:
                        tar.extractall(Path(home, DATA), filter="data")
                done = subprocess.run(
                    tied_to_parent(command),
                    input="".join(json.dumps(request) + "\n" for request in requests),
                    env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "HOME": home, "TMPDIR": home},
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S + SECONDS["score"] * len(requests),
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"{self.package}'s {self.name} gave no answer: {error}") from error
        if done.stdout.count("\n") != len(requests):
            last = last_words(done.stderr)[:500]
            raise InfrastructureError(f"the process of {self.package}'s {self.name} ended early: {last}")
        return [json.loads(line) for line in done.stdout.splitlines()]
