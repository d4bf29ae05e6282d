"""Evaluations that others maintain for inspect_ai, one task each.

    --task inspect:inspect_evals/gsm8k --source FOLDER
    --task 'inspect:inspect_evals/mmlu_0_shot?subjects=astronomy' --source FOLDER

Its solver makes the prompts, our sampler answers, and its scorers grade the completions. So batches, limits, seeds and
back ends are ours, and each item gets the figures that `inspect eval` would give the same completion; but an item that
fails stays in the denominator as errored. Only evaluations that ask the model once for each item, and whose scorers
need nothing but the answer, become tasks; others are refused with what they need.

The data comes from a folder with local copies (`--source`). A copy of what the evaluation reads is kept with the hidden
data, because its code reads it again when it grades. The items are public: anybody can train on them.
"""

import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from a2rl.core.errors import TaskDefinitionError, UsageError
from a2rl.task_api.data import ABOUT
from a2rl.task_api.packages import EVALUATES, EXAMINED, PackageTask, fill
from a2rl.task_api.rows import Reward, Row, write_rows

ARCHIVE = "data.tar"
"""The data of the package, in the hidden folder."""
NEW_TOKENS = 1024
FORMS = ("ANSWER: {}", "{}", "Answer: {}", "The answer is ({}).", "\\boxed{{{}}}")
"""How an answer may be written; the first that a scorer accepts is what a perfect model writes."""


class Evaluation(PackageTask):
    """An evaluation with its parameters, such as `inspect_evals/gsm8k`."""

    package, work = "inspect", "Inspect"

    def prepare(
        self, source: Path | None, folders: Sequence[str], items: ModuleType, visible: Path, hidden: Path
    ) -> None:
        """Writes the data.

        Args:
            source: The folder with local copies.
            folders: Those in it that belong to this evaluation.
            visible: See `a2rl.task_api.contract.Preparer`.
            hidden: The same.

        Raises:
            UsageError: The data is not there, or the evaluation is not fit for grading.
        """
        if source:
            _pack(source, folders, hidden / ARCHIVE)
        task = replace(self, archive=hidden / ARCHIVE)
        try:
            [made] = task.ask([{"make": True}])
            rows: list[Row] = task.needed(made, "rows")
            form = task._form(rows[:: len(rows) // EXAMINED + 1])
        except TaskDefinitionError as error:
            raise UsageError(f"{self.name} cannot be used: {error}") from error
        rows = [{**row, "answer": form.format(row["answer"])} for row in rows]
        training = [{"messages": row["messages"], "answer": form.format(row["answer"])} for row in made["train"]]
        if len({row["id"] for row in rows}) < len(rows):
            raise UsageError(f"{self.name} cannot be used: several items have the same id")
        write_rows(items, training, rows, visible, hidden)
        (visible / "prompt.json").write_text(json.dumps(made["prompt"], indent=1), encoding="utf-8")
        told = {"eval items": "are public", "scorers": ", ".join(made["scorers"]), "package": self.name}
        (hidden / ABOUT).write_text(json.dumps(told), encoding="utf-8")

    def scored(self, answered: Sequence[tuple[Row, str]], hidden: Path) -> list[Reward]:
        """Returns what answers earn."""
        return replace(self, archive=hidden / ARCHIVE).rewards(answered)

    def _form(self, rows: Sequence[Row]) -> str:
        """Returns how a perfect model writes its answers, if the scorers are fit for grading."""
        if len({row["question"] for row in rows}) < 2:
            raise TaskDefinitionError("it has fewer than two different items")
        written = [[form.format(row["answer"]) for row in rows] for form in FORMS]
        for form, answers, mean in zip(FORMS, written, self.means(rows, written), strict=True):
            if mean == 1:
                if problems := list(self.unfit(rows, answers)):
                    raise TaskDefinitionError(f"it is not fit for grading: {'; '.join(problems)}")
                return form
        raise TaskDefinitionError("its own answers do not earn 1, however they are written")


def _pack(source: Path, folders: Sequence[str], archive: Path) -> None:
    """Keeps what is in these folders, in an archive that is the same for the same files.

    Hidden files are left out: `hf download` notes in some of them when it was run.
    """

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(member.name).name.startswith("."):
            return None
        member.uid = member.gid = member.mtime = 0
        member.uname, member.gname, member.mode = "", "", 0o755 if member.isdir() else 0o644
        return member

    with tarfile.open(archive, "w", dereference=True) as tar:
        for folder in folders:
            if (source / folder).is_dir():
                tar.add(source / folder, folder, filter=plain)


def write_task(name: str, parameters: Mapping[str, Any], folder: Path) -> Path:
    """Writes a task's folder for an evaluation that can be graded here; see `packages.write_task`."""
    package, _, short = name.partition("/")
    if not (package.isidentifier() and short.isidentifier()):
        raise UsageError(f"{name!r} names no evaluation: write inspect:PACKAGE/TASK")
    found = Evaluation(name, parameters).examined()
    if needs := found["needs"]:
        raise TaskDefinitionError(f"it needs {', and '.join(needs)}")
    if evaluates := sorted(EVALUATES & {*found["calls"]}):
        raise TaskDefinitionError(f"its code calls {evaluates[0]}(), by which an answer could decide its own value")
    if not isinstance(found["items"], int):
        raise TaskDefinitionError("its eval.yaml does not say how many items it has")
    if wrong := [each for each in found["data"] if Path(each).is_absolute() or ".." in Path(each).parts]:
        raise TaskDefinitionError(f"{wrong[0]!r} is no name of a data set")
    task_id = f"inspect_{short}"[:40].lower()
    return fill(
        folder / task_id,
        _FILES,
        id=task_id,
        name=name,
        parameters=repr(dict(parameters)),
        title=found["title"],
        quoted_title=repr(str(found["title"])),
        description=found["description"].strip(),
        package=f"{package} {found['version']} (licence: {found['licence']})",
        needs=repr(str(found["lacks"])),
        folders=repr(tuple(found["data"])),
        sets=", ".join(found["data"]),
        eval_items=found["items"],
        tokens=NEW_TOKENS,
    )


_FILES = {
    "task.py": '''"""The evaluation $name for inspect_ai."""

from a2rl.task_api.contract import Limits, Task, TaskVariant

TASK = Task(
    id="$id",
    title=$quoted_title,
    level=1,
    metric="mean value of the answers",
    needs_source=$needs,
    full=TaskVariant(eval_items=$eval_items, limits=Limits(max_new_tokens=$tokens)),
)
''',
    "items.py": '''"""How an item is asked. The package's scorer decides what an answer earns; `reward` is close."""


def prompt(row):
    return row["messages"]


def reward(row, answer):
    return float(answer.strip().endswith(row["answer"]))
''',
    "prepare.py": '''"""The data, from the package and from local copies."""

from a2rl.task_api.inspect_tasks import Evaluation

from . import items


def prepare(variant, source, visible, hidden):
    Evaluation("$name", $parameters).prepare(source, $folders, items, visible, hidden)
''',
    "grade.py": '''"""Graded by the package's scorers, in a process that can only compute."""

from a2rl.task_api.inspect_tasks import Evaluation
from a2rl.task_api.rows import RowsGrader

from . import items


def _grader(hidden):
    return RowsGrader(items, lambda answered: Evaluation("$name", $parameters).scored(answered, hidden))


def item_ids(hidden):
    return _grader(hidden).item_ids(hidden)


def grade(sampler, hidden, ids, limits, options):
    return _grader(hidden).grade(sampler, hidden, ids, limits, options)


def score_outputs(outputs, hidden, ids, limits):
    return _grader(hidden).score_outputs(outputs, hidden, ids, limits)


def gold_outputs(hidden):
    return _grader(hidden).gold_outputs(hidden)
''',
    "description.md": """# $title

$description

This is the evaluation `$name` of $package, with the parameters $parameters. Its solver makes the prompt and its scorers
grade the answer, as `inspect eval` would have them do; of several scorers, the first one counts. The model answers
once, without sampling, with up to $tokens tokens. The eval items are public. The data sets ($sets) have licences of
their own.

`train.jsonl` has the training split, if the evaluation names one (otherwise it is empty): the `messages` that the model
is asked, and a right `answer` in a form that the scorer accepts. `prompt.json` has the messages with placeholders. A
model without a chat template gets the messages as one text.
""",
}
