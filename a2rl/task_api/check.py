"""Checks a task's folder against its contract: what `a2rl tasks check` says, and what the tests hold for every task."""

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from a2rl.core.errors import TaskDefinitionError, last_words
from a2rl.core.files import folder_digest, read_jsonl
from a2rl.core.printable import printable
from a2rl.core.processes import tied_to_parent
from a2rl.handout.rows import is_interactive, stops
from a2rl.sampling import NO_KWARGS, Completion, Conversation, Prompt, Sampler, SamplingParams, T
from a2rl.scoring.score import ItemResult, summarise
from a2rl.task_api.catalog import OWN, load_grader, load_preparer, load_task, load_twins, task_folder
from a2rl.task_api.contract import (
    EPISODES,
    CanonicalPreparer,
    DrawingPreparer,
    JudgedGrader,
    KindsGrader,
    Variant,
    code_of_task,
    failure_text,
)
from a2rl.task_api.package_process import calls_in
from a2rl.task_api.packages import EVALUATES
from a2rl.task_api.split import split_ids

SHORTEST_TEXT = 25
"""Texts below this length (a number, a name) may well be in both halves of the data."""
QUESTIONS = ("question", "prompt", "problem", "instruction", "goal")
EVAL_FILES = ("eval.jsonl", "goals.jsonl")
"""The files with the items, where a task has other hidden ones as well."""
OURS = ("a2rl", "flows", "stages", "tasks")
OF_AGENTS = ("vllm",)
"""What this environment lacks, and the one that agents train with may have."""
ORDER = "do not use hash() or the order of a set"
AGAIN = "import sys; sys.path[:] = sys.argv[6:]; from a2rl.task_api.check import main; main(*sys.argv[1:6])"
IMPORT = "import sys; sys.path.insert(0, sys.argv[1]); import items"
DRAWN, SEED = "drawn", "first secret"
_ENDS = re.compile(r"[\w:.?!,]\Z")
NO_IDEA = "no idea"
MOST_KNOWN = 0.05
"""The share of the items of a draw that `prepare` may have written, too."""
MOST_FOR_A_WORD = 10.0
"""The score, in points, that the same wrong word may reach everywhere; a judge likes some short answers."""
MOST_SHOWN = 300
"""The characters of a prompt that are shown: its end."""
MOST_BY_CHANCE = 50.0
"""The score, in points, that the answers of other items may reach."""


class Check(NamedTuple):
    """What was looked at."""

    claim: str
    problem: str
    """What is wrong; empty if the claim holds."""


class TaskCheck:
    """Checks a task, whose data it prepares anew into an empty folder."""

    def __init__(self, task_id: str, root: Path, variant: Variant, source: Path | None, folder: Path) -> None:
        """Takes a task and an empty folder."""
        self.task, self.variant, self.source, self.folder = load_task(task_id, root), variant, source, folder
        self.root = root
        self.code = task_folder(task_id, root)
        self.preparer, self.grader = load_preparer(task_id), load_grader(task_id)
        self.visible, self.hidden = self.prepare("first")

    def prepare(self, name: str) -> tuple[Path, Path]:
        """Prepares the data, and returns the visible and the hidden folder."""
        visible, hidden = self.folder / name / "visible", self.folder / name / "hidden"
        visible.mkdir(parents=True)
        hidden.mkdir()
        with code_of_task(self.task.id):
            self.preparer.prepare(self.variant, self.source, visible, hidden)
        return visible, hidden

    def draw(self, name: str, seed: str) -> Path:
        """Draws an eval set, and returns its folder."""
        folder = self.folder / name
        folder.mkdir()
        cast(DrawingPreparer, self.preparer).draw(seed, folder)
        return folder

    @property
    def is_drawn(self) -> bool:
        """Whether the task has eval sets that are drawn from secret seeds."""
        return isinstance(self.preparer, DrawingPreparer) and self.variant == "mini"

    @cached_property
    def elsewhere(self) -> Path:
        """The folder of what another process prepares and draws. There, `hash()` and sets have another order.

        Raises:
            TaskDefinitionError: The task's code fails there.
        """
        folder = self.folder / "elsewhere"
        given = (self.task.id, self.root, self.variant, self.source or "", folder, *sys.path)
        _python(AGAIN, *map(str, given))
        return folder

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the eval set."""
        return self.grader.item_ids(self.hidden)

    def questions(self, folder: Path, names: Sequence[str] = ()) -> set[str]:
        """Returns the questions in data of the task."""
        return questions(folder, names, self.constant)

    @cached_property
    def constant(self) -> set[str]:
        """The fields that have one value in the whole eval set, and so tell no item."""
        first, *others = _data(self.hidden, EVAL_FILES) or [{}]
        return {key for key in first if others and all(row.get(key) == first[key] for row in others)}

    @cached_property
    def asked(self) -> set[str]:
        """The questions of the eval set."""
        return self.questions(self.hidden, EVAL_FILES)

    @cached_property
    def gold(self) -> Mapping[str, str]:
        """The answers of a perfect model."""
        return self.grader.gold_outputs(self.hidden)

    @cached_property
    def unanswered(self) -> tuple[list[ItemResult], list[Prompt]]:
        """The results of a model that answers nothing, and what it is asked."""
        model = _Silent()
        return _grade(self, model, self.ids), model.asked

    def results(self, outputs: Mapping[str, str]) -> list[ItemResult]:
        """Grades some answers to the eval set."""
        return self.scored(outputs, self.ids)

    def scored(self, outputs: Mapping[str, str], ids: Sequence[str]) -> list[ItemResult]:
        """Grades some answers to these items."""
        return self.grader.score_outputs(outputs, self.hidden, ids, self.task.variant(self.variant).limits)

    def run(self) -> Iterator[Check]:
        """Yields the outcome of each check; one that raises an error has failed."""
        for claim, check in CHECKS.items():
            try:
                yield Check(claim, check(self))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the task's own code
                yield Check(claim, failure_text(error))

    def costs(self) -> str:
        """Returns what grading an answer takes besides the model, in words."""
        tracemalloc.start()
        started = time.perf_counter()
        self.results(self.gold)
        seconds, (_, peak) = time.perf_counter() - started, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return (
            f"{1000 * seconds / max(1, len(self.ids)):.2g} ms an answer, {peak / 2**20:.1f} MiB for all {len(self.ids)}"
        )

    def example(self) -> list[str]:
        """Returns what the first item asks and its right answer, in words; nothing for a judged task."""
        return [
            line
            for prompt, item in zip(self.unanswered[1][:1], self.ids, strict=False)
            for line in (f"item {item} asks: {_shown(prompt)}", f"its right answer: {_shown(self.gold[item])}")
        ]

    def missing(self) -> list[str]:
        """Returns what the task does not have, and what that costs."""
        draws, train, rows = self.is_drawn, self.visible / "train.jsonl", _rows(self.hidden / "eval.jsonl")
        parts = {
            "without rows in train.jsonl, agents have no examples to learn from": not train.is_file() or _rows(train),
            f"without its copies of items, the eval set has {len({*rows})} and not {len(rows)}; each copy counts": (
                len({*rows}) == len(rows)
            ),
            "without `draw` in prepare.py, the eval set is the same for all, and only its halves are secret": draws,
            "without twins, whether a model has learned the eval items by heart is not checked by its behaviour": (
                draws or load_twins(self.task.id) is not None
            ),
            "without `canonical` in prepare.py, items that differ only in names count as different": (
                isinstance(self.preparer, CanonicalPreparer)
            ),
            "without `item_kinds` in grade.py, the halves of the eval set are not balanced by kind": (
                isinstance(self.grader, KindsGrader)
            ),
        }
        return [what for what, there in parts.items() if not there]


def _python(code: str, *arguments: str) -> None:
    """Runs code in another process, without the variables that change Python.

    Raises:
        TaskDefinitionError: It fails.
    """
    command = tied_to_parent([sys.executable, "-I", "-B", "-c", code, *arguments])
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise TaskDefinitionError(last_words(done.stderr) or f"it ended with status {done.returncode}")


def main(task_id: str, root: str, variant: Variant, source: str, folder: str) -> None:
    """Prepares and draws; see `TaskCheck.elsewhere`."""
    importlib.import_module("tasks").__path__.append(str(Path(root, OWN)))
    check = TaskCheck(task_id, Path(root), variant, Path(source) if source else None, Path(folder))
    if check.is_drawn:
        check.draw(DRAWN, SEED)


def questions(folder: Path, names: Sequence[str] = (), constant: Set[str] = frozenset()) -> set[str]:
    """Returns the questions in a folder's data; all texts of rows without a question; for games, the rooms.

    Args:
        names: See `_data`.
        constant: The fields that tell no item.
    """
    found = {json.loads(path.read_text())["pddl_problem"] for path in folder.rglob("*.tw-pddl")}
    for row in _data(folder, names):
        texts = [row[key] for key in QUESTIONS if key in row.keys() - constant]
        texts = texts or [row[key] for key in row.keys() - constant]
        long = {text for text in texts if isinstance(text, str) and len(text) >= SHORTEST_TEXT}
        found |= long or {json.dumps({key: row[key] for key in row if key != "id"}, sort_keys=True)}
    return found


def _data(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rows of a folder's files; of those with these names, if there are any."""
    files = [path for name in names for path in folder.rglob(name)] or folder.rglob("*.jsonl")
    return [row for path in files for row in read_jsonl(path)]


def _items(check: TaskCheck) -> str:
    if not all(isinstance(each, str) and each for each in check.ids) or len({*check.ids}) < len(check.ids):
        return "an id is empty, no text, or there twice"
    said, there = check.task.variant(check.variant).eval_items, len(check.ids)
    return "" if there == said else f"the eval set has {there} items, and task.py says {said}"


def _apart(check: TaskCheck) -> str:
    hidden, visible = check.asked, check.questions(check.visible)
    shared = hidden & visible
    return f"{len(shared)} of {len(hidden)} are in the training data, such as: {min(shared)[:80]}" if shared else ""


def _unseen(check: TaskCheck) -> str:
    hidden = {path.read_bytes() for path in check.hidden.rglob("*") if path.is_file() and path.stat().st_size > 2}
    for path in sorted(check.visible.rglob("*")):
        if path.is_symlink():
            return f"{path.name} is a link"
        for_both = check.hidden / path.relative_to(check.visible)
        is_shown = path.suffix == ".jsonl" and for_both.is_file() and for_both.read_bytes() == path.read_bytes()
        if is_shown and not check.asked & check.questions(path.parent, [path.name]):
            continue  # such as worked examples
        if path.is_file() and path.read_bytes() in hidden:
            return f"{path.relative_to(check.visible)} is also in the hidden data"
    return ""


def _alike(check: TaskCheck) -> str:
    first = folder_digest(check.visible.parent)
    if folder_digest(check.prepare("again")[0].parent) != first:
        return "prepare() writes other files the second time: take every random number from a fixed seed"
    same = folder_digest(check.elsewhere / "first") == first
    return "" if same else f"prepare() writes other files in another process: {ORDER}"


def _gold(check: TaskCheck) -> str:
    if not check.ids:
        return "the eval set is empty"
    if nothing := [each for each in check.ids if not check.gold.get(each)]:
        return (
            f"{len(nothing)} of {len(check.ids)} items have no right answer, such as item {nothing[0]}: a row needs "
            "the field `answer`, or items.py the function `gold(row)`"
        )
    items = getattr(check.grader, "items", None)
    for outputs in (check.gold, _after_space(check)):
        ids = [each for each in check.ids if each in outputs]
        results = check.scored(outputs, ids) if ids else []
        if wrong := [each for each in results if each.verdict != "correct" or each.value < 1]:
            text, why = outputs[wrong[0].id], ""
            if not is_interactive(items) and any(stop in text for stop in stops(items)):
                why = ": it contains STOP"
            elif outputs is not check.gold:
                why = ": after this prompt, models begin with a space"
            what = wrong[0].reason or f"{text!r} earns {wrong[0].value:g}{why}"
            return f"{len(wrong)} of {len(ids)} do not earn 1, such as that of item {wrong[0].id}: {what}"
    return ""


def _after_space(check: TaskCheck) -> dict[str, str]:
    """Returns the right answers to prompts that end with a word or a colon, as models are taught to write them."""
    if is_interactive(getattr(check.grader, "items", None)):
        return {}
    asked = zip(check.ids, check.unanswered[1], strict=False)
    return {each: f" {check.gold[each]}" for each, text in asked if isinstance(text, str) and _ENDS.search(text)}


def _steps(check: TaskCheck) -> str:
    most = check.task.variant(check.variant).limits.max_steps
    turns = {each: len(text.splitlines()) for each, text in check.gold.items()}
    long = [each for each in turns if check.task.level == EPISODES and turns[each] > most]
    return f"item {long[0]} needs {turns[long[0]]}, and `max_steps` is {most}" if long else ""


def _rows(file: Path) -> list[str]:
    """Returns the rows of a file without their ids; nothing if there is no such file."""
    found = read_jsonl(file) if file.is_file() else []
    return [json.dumps({key: row[key] for key in row if key != "id"}, sort_keys=True) for row in found]


def _shown(prompt: Prompt) -> str:
    text = prompt if isinstance(prompt, str) else "\n\n".join(message.content for message in prompt)
    return printable(f"{'...' if len(text) > MOST_SHOWN else ''}{text[-MOST_SHOWN:]!r}")


class _Silent(Sampler):
    """A model that answers nothing, and notes what it is asked first."""

    has_chat_template = False

    def __init__(self) -> None:
        self.asked: list[Prompt] = []

    def room_after(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] = NO_KWARGS) -> int:
        return 1 << 20

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        return [self._end(each) for each in conversations]

    def _end(self, conversation: Conversation[T]) -> T:
        try:
            first = next(conversation)
            self.asked += [first] if isinstance(first, str | tuple) else []
            while True:
                conversation.send(Completion("", "stop", 0, 0))
        except StopIteration as end:
            result: T = end.value
            return result


def _grade(check: TaskCheck, model: Sampler, ids: Sequence[str]) -> list[ItemResult]:
    grader: Any = check.grader
    if isinstance(grader, JudgedGrader):
        return check.results(dict.fromkeys(ids, ""))
    limits = check.task.variant(check.variant).limits
    return list(grader.grade(model, check.hidden, ids, limits, check.task.choose({})))


def _low(graded: Callable[[TaskCheck], list[ItemResult]], most: float) -> Callable[[TaskCheck], str]:
    def check_score(check: TaskCheck) -> str:
        results = graded(check)
        if errored := [each for each in results if each.verdict == "errored"]:
            return f"{len(errored)} of {len(results)} are errored, such as item {errored[0].id}: {errored[0].reason}"
        score = summarise(results).score or 0.0
        return "" if score <= most else f"they score {score:.1f}; the most that is allowed is {most:g}"

    return check_score


def _shifted(check: TaskCheck) -> list[ItemResult]:
    answers = [check.gold[each] for each in check.ids]
    return check.results(dict(zip(check.ids, [*answers[1:], *answers[:1]], strict=True)))


def _missing(check: TaskCheck) -> str:
    items = check.results({})
    errored = all(each.verdict == "errored" and each.reason for each in items)
    return "" if errored and summarise(items).score is None else "they are graded as if there were answers"


def _repeated(check: TaskCheck) -> str:
    outputs = {each: check.gold[each] if place % 3 else "" for place, each in enumerate(check.ids)}
    return "" if check.results(outputs) == check.results(outputs) else "the results differ"


def _by_item(check: TaskCheck) -> str:
    ids = split_ids(check.ids, "private", seed=1)[::-1]
    outputs = {each: check.gold[each] if place % 2 else NO_IDEA for place, each in enumerate(ids) if place % 5}
    results = check.scored(outputs, ids)
    if [each.id for each in results] != ids:
        return "there is not one result for each id, in the order in which they were given"
    right = {each.id for each in results if each.verdict == "correct"}
    golden = {each.id for each in check.results(check.gold) if each.verdict == "correct"}
    expected = {each for each, text in outputs.items() if text != NO_IDEA} & golden
    return "" if right == expected else "wrong answers count as right, or answers are judged by their places"


def _alone(check: TaskCheck) -> str:
    """Agents get the visible files without a2rl: what is Python among them must not import it."""
    for path in sorted(check.visible.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            lacking = [name for name in names if name.partition(".")[0] in OURS]
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                lacking += [node.module] if _is_lacking(node.module.partition(".")[0], check.visible) else []
            if isinstance(node, ast.ImportFrom) and node.level and path.parent == check.visible:
                lacking.append("." * node.level + (node.module or ""))
            if lacking:
                return f"{path.name} imports {lacking[0]}, which agents do not have"
    try:
        if (check.visible / "items.py").is_file():
            _python(IMPORT, str(check.visible))
    except TaskDefinitionError as error:
        return f"agents get no other file, and importing items.py fails: {error}"
    return ""


def _is_lacking(module: str, visible: Path) -> bool:
    """Whether agents cannot import this. Of a module of ours, `hand_out` has left only the last part of its name."""
    there = (visible / module).is_dir() or (visible / f"{module}.py").is_file()
    return module in OURS or not (there or module in OF_AGENTS or importlib.util.find_spec(module))


def _unexecuted(check: TaskCheck) -> str:
    for path in sorted(_reading_answers(check.code)):
        if found := sorted(EVALUATES & calls_in([path])):
            return (
                f"{path.name} calls {found[0]}(): an answer that gets there runs with your rights, and can decide its "
                "own value. Read answers with `ast`, or run them in grade.py with `a2rl.code_execution`"
            )
    return ""


def _reading_answers(folder: Path) -> set[Path]:
    """Returns the modules that get answers: those to which they come first, and what these import of the folder."""
    parts = {path: {*path.relative_to(folder).with_suffix("").parts} for path in folder.rglob("*.py")}
    found, named = set[Path](), {"grade", "services"}
    while new := {path for path in parts if parts[path] & named} - found:
        found |= new
        for node in (node for path in new for node in ast.walk(ast.parse(path.read_bytes()))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(each.name for each in node.names)]
                named |= {part for name in names for part in name.split(".")}
    return found


def _drawn(check: TaskCheck) -> str:
    if not check.is_drawn:
        return ""
    digests, known = [], check.asked | check.questions(check.visible)
    for name, seed in ((DRAWN, SEED), ("drawn again", SEED), ("drawn anew", "second secret")):
        folder = check.draw(name, seed)
        digests.append(folder_digest(folder))
        asked = check.questions(folder, EVAL_FILES)
        if len(shared := asked & known) > MOST_KNOWN * len(asked):
            return f"{len(shared)} of {len(asked)} items are those that `prepare` writes, such as: {min(shared)[:80]}"
        if seed in "".join(path.read_text(encoding="utf-8", errors="ignore") for path in folder.rglob("*.*")):
            return "a file contains the secret seed"
    if digests[0] != digests[1]:
        return "the same seed gives other files"
    if digests[0] != folder_digest(check.elsewhere / DRAWN):
        return f"the same seed gives other files in another process: {ORDER}"
    return "" if digests[0] != digests[2] else "another seed gives the same items"


CHECKS: dict[str, Callable[[TaskCheck], str]] = {
    "the eval set has the size that task.py says, and its ids are unique texts": _items,
    "the training data has no item of the eval set": _apart,
    "the agent gets no hidden file": _unseen,
    "what agents get works without a2rl": _alone,
    "preparing twice gives the same files": _alike,
    "the right answers score 100": _gold,
    "the right answers take no more turns than task.py allows": _steps,
    "empty answers score 0": _low(lambda check: check.unanswered[0], 0.0),
    "a wrong word scores next to nothing": _low(
        lambda check: check.results(dict.fromkeys(check.ids, NO_IDEA)), MOST_FOR_A_WORD
    ),
    f"the answers of other items score at most {MOST_BY_CHANCE:g}": _low(_shifted, MOST_BY_CHANCE),
    "answers that are missing are errored, and leave no score": _missing,
    "grading twice gives the same results": _repeated,
    "each answer is judged by its item": _by_item,
    "no answer is executed": _unexecuted,
    "draws are secret, new, and can be repeated": _drawn,
}
"""What holds for every task, and how it is found out: a function that returns what is wrong."""
