"""Has a package of others make and score items, in its own environment and without access to anything.

    <python of .venv-tasks> -s -P -c START <folder of a2rl> <a class below> <its arguments>

It reads requests from standard input, one JSON object a line, and answers each with a line, which is
`{"problem": text}` if it could not be done:

    {"make": seed, "count": number}     {"rows": [...]}
    {"score": text, "entry": {...}}     {"value": number}, or {"figures": {name: number}}
    {"examine": true}                   what the package says of the task

The package is code of others, and an answer of the model may make it do what its authors did not intend. So this
process can read only the system, its environment and $HOME, write nothing but $HOME while it loads the task, and reach
no network, and it gets no keys. Each request is done in a process of its own, which can only compute, has limits of
time and memory, and changes nothing for the next one.

`ReasoningGym` makes and scores the items of a generator. `Inspect` makes the items of an evaluation for inspect_ai and
scores answers to them. An evaluation's own solver makes the prompt and continues with the given answer, and its own
scorers grade what comes of that, as `inspect eval` would have them do. Standard library only, besides the packages.
"""

import ast
import difflib
import importlib
import importlib.metadata
import inspect
import json
import os
import random
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from a2rl.linux import landlock, seccomp
from a2rl.linux.resources import lower_limit

START = "import sys; root = sys.argv.pop(1); sys.path.insert(0, root); "
START += "from a2rl.task_api import package_process; sys.path.remove(root); package_process.main(*sys.argv[1:])"
MEMORY_BYTES = 4 << 30
SECONDS = {"make": 120, "score": 5, "examine": 10}
"""Of processor time, for each kind of request."""
REPLY_BYTES = {"make": 256 << 20, "score": 1 << 13, "examine": 1 << 20}
"""The longest reply to each kind of request."""
DATA = "data"
"""The folder in $HOME with data of the task."""
PR_SET_PDEATHSIG = 1


def main(package: str, *arguments: str) -> None:
    """Answers requests until there are no more."""
    work = PACKAGES[package](*arguments)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)  # whatever the package prints
    os.dup2(nowhere, 2)
    landlock.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    folders = (sys.prefix, sys.base_prefix, *sys.path, "/usr", "/lib", "/lib64", "/etc/localtime", "/dev/null")
    read = (*(Path(each) for each in folders if each), Path.home())
    landlock.restrict(landlock.AccessRights(read=read, write=(Path.home(), Path(os.devnull))))
    seccomp.refuse_sockets()
    problem = ""
    try:
        work.load()
    except BaseException as error:  # noqa: BLE001 - the package's code may raise anything
        problem = _problem(error)
    landlock.restrict(landlock.AccessRights(read=read))
    for line in sys.stdin:
        replies.write((problem or _done_apart(work, json.loads(line))) + "\n")
        replies.flush()


def _problem(error: BaseException) -> str:
    name = "" if type(error).__module__.startswith("a2rl.") else f"{type(error).__name__}: "
    return json.dumps({"problem": f"{name}{' '.join(str(error).split())}"[:500]})


def _done_apart(work: "ReasoningGym | Inspect", request: dict[str, Any]) -> str:
    """Does a request in a process of its own, and returns the reply as one line of JSON."""
    kind = next(each for each in SECONDS if each in request)
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        landlock.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(ours)
        try:
            lower_limit(resource.RLIMIT_CPU, SECONDS[kind], margin=1)
            lower_limit(resource.RLIMIT_AS, MEMORY_BYTES)
            seccomp.allow_computation_only(files=True)
            reply = json.dumps(work.done(kind, request))
        except BaseException as error:  # noqa: BLE001 - the package's code may raise anything
            reply = _problem(error)
        data = reply.encode()
        while data:
            data = data[os.write(theirs, data) :]
        os._exit(0)
    os.close(theirs)
    reply = _read(ours, time.monotonic() + 10 * SECONDS[kind], REPLY_BYTES[kind])
    os.close(ours)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return reply or json.dumps({"problem": f"its process ended with status {status & 0x7F}, or took too long"})


def _read(pipe: int, until: float, most: int) -> str:
    """Reads a reply to its end; empty if it is not complete in time, too long, or not one object of JSON."""
    data = bytearray()
    while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
        block = os.read(pipe, 1 << 20)
        data += block
        if not block or len(data) > most:
            break
    else:
        return ""
    try:
        reply = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    return json.dumps(reply) if isinstance(reply, dict) else ""


ASKS_A_MODEL = frozenset({"model_graded_qa", "model_graded_fact"})
A_JUDGES = re.compile("judge|grader|graded")
PATTERNS = ("re.compile", "regex.compile")


class ReasoningGym:
    """A generator of reasoning_gym; examined, it says which functions its module calls."""

    def __init__(self, generator: str, parameters: str) -> None:
        """Takes the name of a generator, and its parameters as JSON."""
        self.generator, self.parameters = generator, json.loads(parameters)

    def load(self) -> None:
        """Loads the package, once for all requests."""
        self.package: Any = importlib.import_module("reasoning_gym")

    def done(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        """Does a request, and returns the reply."""
        made = self.package.create_dataset(self.generator, size=1, seed=0, **self.parameters)
        if kind == "score":
            return {"value": float(made.score_answer(request["score"], request["entry"]))}
        if kind == "examine":
            source = inspect.getsourcefile(type(made))
            return {"calls": sorted(calls_in([Path(source)] if source else []))}
        made = self.package.create_dataset(
            self.generator, size=request["count"], seed=request["make"], **self.parameters
        )
        entries = [made[place] for place in range(request["count"])]
        rows = [{"question": str(each["question"]), "answer": each["answer"], "entry": each} for each in entries]
        return {"rows": rows}


class UnmetNeedError(Exception):
    """What is asked for needs something that it does not get here."""


class MissingDataError(UnmetNeedError):
    """A data set is not in the folder with local copies."""


class _AskedError(Exception):
    """An evaluation asks its model."""


class Inspect:
    """An evaluation for inspect_ai, such as `inspect_evals/gsm8k`.

    The data sets of the hub that it reads are folders `OWNER/NAME` of the folder with its data. What it downloads from
    elsewhere is there, too, where inspect_evals keeps it (INSPECT_EVALS_CACHE_DIR).
    """

    def __init__(self, task: str, parameters: str) -> None:
        """Takes the name of an evaluation, and its parameters as JSON."""
        self.package, _, self.name = task.partition("/")
        self.parameters, self.folder = json.loads(parameters), Path.home() / DATA
        self.training: list[Any] = []
        self.no_data: Exception | None = None

    def load(self) -> None:
        """Loads the evaluation with its data, or notes which data it lacks."""
        os.environ.update(INSPECT_EVALS_CACHE_DIR=str(self.folder), HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
        time.sleep = _refuse_to_wait
        random.Random = _SeededRandom  # type: ignore[assignment, misc]
        random.seed(0)
        importlib.import_module("numpy").random.seed(0)
        self._read_copies()
        models: Any = importlib.import_module("inspect_ai.model._model")
        model = models.get_model("mockllm/model")  # what code gets that wants to know which model is evaluated
        model.generate = _refuse_to_generate
        models.init_active_model(model, models.GenerateConfig())
        entry_points: Any = importlib.import_module("inspect_ai._util.entrypoints")
        entry_points.ensure_entry_points(self.package)
        self.registry: Any = importlib.import_module("inspect_ai._util.registry")
        self.function = self.registry.registry_lookup("task", f"{self.package}/{self.name}")
        if self.function is None:
            known = [each.partition("/")[2] for each in self.registry._registry if each.startswith("task:")]
            close = ", ".join(difflib.get_close_matches(self.name, known)) or "none"
            raise UnmetNeedError(f"{self.package} has no task {self.name}; close names: {close}")
        inspect.signature(self.function).bind(**self.parameters)
        try:
            self.task = self.function(**self.parameters)
        except Exception as error:  # noqa: BLE001 - the package's code; `make` needs it, and `examine` does not
            self.no_data = error

    def done(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        """Does a request, and returns the reply."""
        if kind == "examine":
            return self._examined()
        if self.no_data:
            raise self.no_data
        self.inspect: Any = importlib.import_module("inspect_ai")
        if kind == "score":
            sample = self.inspect.dataset.Sample.model_validate(request["entry"])
            return {"figures": self._figures(sample, request["score"])}
        if self.task.sandbox or not self.task.scorer:
            raise UnmetNeedError("it runs code in containers" if self.task.sandbox else "it has no scorer")
        rows = [self._row(sample, place) for place, sample in enumerate(self.task.dataset, 1)]
        known = {row["question"] for row in rows}
        training = [self._row(sample, 0) for sample in self.training]
        return {
            "rows": rows,
            "train": [row for row in training if row["question"] not in known],
            "scorers": self._scorers(),
            "prompt": self._prompt(self.task.dataset[0]),
        }

    def _read_copies(self) -> None:
        datasets: Any = importlib.import_module("datasets")
        hub: Any = importlib.import_module("huggingface_hub")
        inspect_data: Any = importlib.import_module("inspect_ai.dataset")
        load, hf_dataset = datasets.load_dataset, inspect_data.hf_dataset

        def copy(name: str, revision: object) -> str:
            if not (self.folder / name).is_dir():
                command = f"hf download {name} --repo-type dataset --revision {revision} --local-dir FOLDER/{name}"
                raise MissingDataError(f"the data set {name} of the Hugging Face hub in FOLDER/{name} ({command})")
            return str(self.folder / name)

        def load_dataset(
            path: str, *given: Any, revision: Any = None, trust_remote_code: Any = None, **more: Any
        ) -> Any:
            return load(copy(path, revision), *given, **more)

        def noting_training(*given: Any, **more: Any) -> Any:
            if str(more.get("split", "")).startswith("train"):
                self.training += hf_dataset(*given, **{**more, "limit": None, "shuffle": False, "seed": None})
            return hf_dataset(*given, **more)

        datasets.load_dataset, inspect_data.hf_dataset = load_dataset, noting_training
        hub.snapshot_download = lambda repo_id, *_, revision=None, **__: copy(repo_id, revision)
        hub.hf_hub_download = lambda repo_id, filename, *_, revision=None, **__: str(
            Path(copy(repo_id, revision), filename)
        )

    def _examined(self) -> dict[str, Any]:
        """Returns what the package says of the evaluation: what it is, what data it has, and what else it needs."""
        source = Path(str(inspect.getsourcefile(inspect.unwrap(self.function))))
        noted = source.with_name("eval.yaml")
        yaml: Any = importlib.import_module("yaml")
        about = yaml.safe_load(noted.read_text(encoding="utf-8")) if noted.is_file() else {}
        sizes = {each["name"]: each.get("dataset_samples") for each in about.get("tasks", [])}
        assets = about.get("external_assets") or []
        kept = f"its data in FOLDER/{source.parent.name}, where inspect_evals keeps it (INSPECT_EVALS_CACHE_DIR)"
        lacks = self.no_data if isinstance(self.no_data, MissingDataError) else kept if assets else self.no_data
        return {
            "title": about.get("title", self.name),
            "description": about.get("description", ""),
            "items": sizes.get(self.name),
            "version": importlib.metadata.version(self.package),
            "licence": importlib.metadata.metadata(self.package).json.get("license_expression", "not stated"),
            "data": [each["source"] for each in assets if each["type"] == "huggingface"] + [source.parent.name],
            "lacks": str(lacks) if self.no_data else "",
            "needs": sorted(self._needs(about, source)),
            "calls": sorted(calls_in(source.parent.rglob("*.py"))),
        }

    def _needs(self, about: dict[str, Any], source: Path) -> Iterable[str]:
        """Yields what the evaluation needs, besides its data, that nobody gives it here."""
        more = about.get("metadata") or {}
        if more.get("sandbox"):
            yield "containers (Docker), in which its code runs"
        if "gpu" in (more.get("requires") or {}):
            yield "a GPU of its own"
        if "Agent" in (about.get("tags") or ()):
            yield "an agent with tools, over many turns"
        if ASKS_A_MODEL & calls_in([source]) or any(map(A_JUDGES.search, inspect.signature(self.function).parameters)):
            yield "another model, such as a judge"
        extra = str(about.get("dependency") or about.get("dependency_group") or "").replace("_", "-")
        for each in importlib.metadata.requires(self.package) or ():
            name = re.split(r"[^\w.-]", each, maxsplit=1)[0]
            if extra and re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", each) and not _is_installed(name):
                yield f"the Python package {name}, in .venv-tasks"

    def _prompt(self, sample: Any) -> list[dict[str, str]]:
        """Returns what the solver asks, with placeholders for what is the item's own; nothing if it needs more."""
        choices = [f"{{choice {place}}}" for place in range(1, len(sample.choices or ()) + 1)]
        metadata = {key: f"{{{key}}}" for key in sample.metadata or {}}
        own = {"input": "{question}", "choices": choices or None, "target": "{answer}", "metadata": metadata}
        try:
            return self._asked(sample.model_copy(update=own))
        except Exception:  # noqa: BLE001 - the package's code, with values that it does not expect
            return []

    def _row(self, sample: Any, place: int) -> dict[str, Any]:
        if sample.sandbox or sample.files or sample.setup:
            raise UnmetNeedError("it runs code in containers")
        question = sample.input if isinstance(sample.input, str) else "\n".join(each.text for each in sample.input)
        answers = [sample.target] if isinstance(sample.target, str) else list(sample.target)
        return {
            "id": str(sample.id if sample.id is not None else place),
            "question": question,
            "messages": self._asked(sample),
            "answer": ",".join(answers) if sample.choices else next(filter(None, answers), ""),
            "entry": sample.model_dump(mode="json", exclude_none=True),
        }

    def _asked(self, sample: Any) -> list[dict[str, str]]:
        """Returns what the solver asks the model."""

        async def generate(state: Any, *_: Any, **__: Any) -> Any:
            if state.tools:
                raise UnmetNeedError("it gives the model tools")
            raise _AskedError(state.messages)

        try:
            _finished(self.task.solver(self._state(sample), generate))
        except _AskedError as asked:
            messages = [{"role": each.role, "content": each.content} for each in asked.args[0]]
            if any(not isinstance(each["content"], str) for each in messages):
                raise UnmetNeedError("it shows the model more than text") from None
            return messages
        raise UnmetNeedError("it asks the model nothing")

    def _figures(self, sample: Any, answer: str) -> dict[str, float]:
        """Returns what each scorer gives an answer."""
        turns = 0

        async def generate(state: Any, *_: Any, **__: Any) -> Any:
            nonlocal turns
            turns += 1
            state.output = self.inspect.model.ModelOutput.from_content("a2rl/model", answer)
            state.messages.append(state.output.message)
            return state

        state = _finished(self.task.solver(self._state(sample), generate))
        if turns != 1:
            raise UnmetNeedError(f"it asks the model {turns} times for one item")
        figures, as_number = {}, self.inspect.scorer.value_to_float()
        for name, scorer in zip(self._scorers(), self.task.scorer, strict=True):
            value = _finished(scorer(state, state.target)).value
            if not isinstance(value, str | int | float):
                raise UnmetNeedError(f"its scorer {name} gives several figures")
            figures[name] = as_number(value)
        return figures

    def _scorers(self) -> list[str]:
        names: list[str] = []
        for scorer in self.task.scorer:
            name = self.registry.registry_unqualified_name(scorer)
            names.append(name if name not in names else f"{name}{len(names)}")
        return names

    def _state(self, sample: Any) -> Any:
        made = importlib.import_module("inspect_ai._eval.task.util")
        return self.inspect.solver.TaskState(
            model=self.inspect.model.ModelName("a2rl/model"),
            sample_id=sample.id or 0,
            epoch=1,
            input=sample.input,
            messages=made.sample_messages(sample),
            target=self.inspect.scorer.Target(sample.target),
            choices=sample.choices,
            metadata=sample.metadata or {},
        )


PACKAGES = {each.__name__: each for each in (ReasoningGym, Inspect)}


class _SeededRandom(random.Random):
    """Shuffles alike each time, also where an evaluation names no seed."""

    def __init__(self, seed: Any = 0) -> None:
        super().__init__(0 if seed is None else seed)


async def _refuse_to_generate(*_: Any, **__: Any) -> None:
    raise UnmetNeedError("it asks another model, such as a judge")


def _refuse_to_wait(seconds: Any) -> None:
    raise TimeoutError(f"it would wait {seconds:.0f} s to try again, but there is no network")


def _finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of a coroutine that waits for nothing.

    Raises:
        UnmetNeedError: It waits: for a tool, a container or another model.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise UnmetNeedError("it waits for something other than the model's answer")


def calls_in(files: Iterable[Path]) -> set[str]:
    """Returns the names of the functions that are called in files, but for those that compile a pattern."""
    trees = [ast.parse(each.read_bytes()) for each in files]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {getattr(each, "id", getattr(each, "attr", "")) for each in calls if ast.unparse(each) not in PATTERNS}


def _is_installed(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False
