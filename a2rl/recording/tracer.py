"""Notes how an agent's Python programs train: which trainers run, optimizer steps, generations, checkpoints, merges.

An agent gets this file as `sitecustomize.py`, in a folder at the front of its PYTHONPATH, so that each of its Python
programs loads it. It notes one JSON object per line in the file that `A2RL_TRACE` names:

    {"event": "train", "t": 1765.2, "process": "812-6f1a", "classes": ["trl.trainer.sft_trainer.SFTTrainer", ...],
     "settings": [], "has_own_loss": false, "file": "/w/code/train.py", "line": 40}
    {"event": "work", "t": 1801.0, "process": "812-6f1a", "since": 1765.9, "generations": 0, "turns": 0,
     "steps": [{"file": "/w/code/train.py", "line": 41, "function": "main", "count": 120}]}
    {"event": "trained", "t": 1801.1, "process": "812-6f1a", "steps": 120, "failed": false}

`work` has the steps of optimizers by the place in the agent's code that took them, the calls that generate, and how
often steps followed generations. Its lines come at once, then at most once a minute. Libraries are patched when a
program imports them, so a program without them loses nothing. A failure in here never reaches the program.

The file must work alone, in any environment of an agent's: it imports nothing of a2rl, and nothing that takes time.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:  # these imports would take longer than all the rest
    from collections.abc import Callable
    from typing import Any

VARIABLE = "A2RL_TRACE"
FILE = ".training.jsonl"
"""The file in an agent's workspace."""
MAX_BYTES = 8 << 20
"""A file of this size gets no more lines."""
MAX_TEXT = 500
MAX_PLACES = 8
LONGEST_PAUSE_S = 60.0
HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = (os.path.dirname(os.__file__), HERE)


class Tracer:
    """Counts the work of this process and writes lines."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.running: set[tuple[str, int]] = set()
        """What each thread is in the middle of: only the outermost of nested calls is noted."""
        self._is_own: dict[str, bool] = {}
        self.forget()

    def forget(self) -> None:
        """Forgets what a parent process has counted, in a child that was forked from it."""
        # The number alone is used again, at the latest in the next attempt's namespace of processes.
        self._process = f"{os.getpid()}-{time.time_ns():x}"
        self._since = self._next_s = self._pause_s = 0.0
        self._steps: dict[tuple[str, str], list[int]] = {}
        self._generations = self._turns = 0
        self._has_generated = False

    def write(self, event: str, **fields: Any) -> None:
        """Appends a line, after the work that was counted before it."""
        self.flush()
        self._append(event, **fields)

    def flush(self) -> None:
        """Writes what has been counted."""
        if not self._steps and not self._generations:
            return
        places = sorted(self._steps.items(), key=lambda item: -item[1][1])[:MAX_PLACES]
        steps = [
            {"file": _path(file), "line": line, "function": function[:MAX_TEXT], "count": count}
            for (file, function), (line, count) in places
        ]
        counted = {"since": self._since, "steps": steps, "generations": self._generations, "turns": self._turns}
        self._steps, self._generations, self._turns, self._since = {}, 0, 0, 0.0
        self._append("work", **counted)

    def _append(self, event: str, **fields: Any) -> None:
        import json

        line = json.dumps({"event": event, "t": round(time.time(), 3), "process": self._process, **fields})
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(self.path, flags, 0o600)
        try:
            if os.fstat(file).st_size < MAX_BYTES:
                os.write(file, line.encode() + b"\n")
        finally:
            os.close(file)

    def step(self, *_: Any) -> None:
        """Counts a step of an optimizer: a hook that torch calls."""
        try:
            file, function, line = self.place()
            counts = self._steps.setdefault((file, function), [line, 0])
            counts[1] += 1
            self._turns += self._has_generated
            self._has_generated = False
            self._counted()
        except Exception:  # noqa: BLE001 - an agent's program never fails because of this
            return

    def generation(self, *_: Any) -> None:
        """Counts a call that generates."""
        self._generations += 1
        self._has_generated = True
        self._counted()

    def _counted(self) -> None:
        now = time.time()
        self._since = self._since or now
        if now >= self._next_s:
            self.flush()
            self._next_s = now + self._pause_s
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s + 0.5)

    def place(self) -> tuple[str, str, int]:
        """Returns file, function and line of the agent's own code that led here."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            is_own = self._is_own.get(file)
            if is_own is None:
                is_own = self._is_own[file] = _is_own(file)
            if is_own:
                return file, frame.f_code.co_name, frame.f_lineno
            frame = frame.f_back
        return "", "", 0

    def around(self, owner: Any, name: str, kind: str, note: Callable[..., Callable[[bool], None] | None]) -> None:
        """Notes the calls of a function or method, apart from those within one of the same kind.

        Args:
            owner: A class or module that defines it.
            name: Its name; nothing happens if there is none.
            kind: What it does.
            note: Called before it with its arguments. What it returns is called afterwards, with whether it failed.
        """
        import functools

        found = owner.__dict__.get(name)
        function = found.__func__ if isinstance(found, classmethod) else found
        if not callable(function) or isinstance(found, staticmethod):
            return

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            here = (kind, get_ident())
            if here in self.running:
                return function(*args, **kwargs)
            self.running.add(here)
            ended, failed = self.safely(note, *args, **kwargs), True
            try:
                result = function(*args, **kwargs)
                failed = False
                return result
            finally:
                self.running.discard(here)
                if ended is not None:
                    self.safely(ended, failed)

        setattr(owner, name, classmethod(traced) if isinstance(found, classmethod) else traced)

    @staticmethod
    def safely(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function of this file; returns None if it fails."""
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - an agent's program never fails because of this
            return None


def _is_own(file: str) -> bool:
    """Says whether a file is the agent's own code rather than a library's."""
    if file.startswith("<"):
        return file in {"<string>", "<stdin>"}
    path = os.path.abspath(file)
    return not (path.startswith(LIBRARIES) or "site-packages" in path or "dist-packages" in path)


def _path(path: Any) -> str:
    """Returns a path as text: absolute, unless it is no path, such as that of code from standard input."""
    text: str = os.fspath(path)
    return (text if text.startswith("<") or not text else os.path.abspath(text))[:MAX_TEXT]


# What is patched when a library is imported. Each function gets the module.


def optimizers(tracer: Tracer, module: Any) -> None:
    """Counts the steps of all optimizers of torch."""
    module.register_optimizer_step_post_hook(tracer.step)


def generators(tracer: Tracer, module: Any) -> None:
    """Counts calls that generate."""
    for name in ("GenerationMixin", "LLM", "AsyncLLM"):
        for method in ("generate", "chat"):
            if hasattr(module, name):
                tracer.around(getattr(module, name), method, "generate", lambda *_, **__: tracer.generation())


def trainers(tracer: Tracer, module: Any) -> None:
    """Notes the training of all trainers that a module defines."""
    for name, found in list(vars(module).items()):
        if name.endswith("Trainer") and getattr(found, "__module__", None) == module.__name__:
            for method in ("train", "fit"):
                tracer.around(found, method, "train", lambda trainer, *_, **__: _train(tracer, trainer))


def _train(tracer: Tracer, trainer: Any) -> Callable[[bool], None]:
    settings = [name for name in ("rollout_func", "environment_factory", "tools") if getattr(trainer, name, None)]
    classes = [f"{each.__module__}.{each.__qualname__}"[:MAX_TEXT] for each in type(trainer).__mro__[:-1]]
    loss = getattr(getattr(type(trainer), "compute_loss", None), "__code__", None)
    file, _, line = tracer.place()
    tracer.write(
        "train", classes=classes[:16], settings=settings, has_own_loss=loss is not None and _is_own(loss.co_filename),
        file=_path(file), line=line,
    )  # fmt: skip

    def ended(failed: bool) -> None:
        steps = getattr(getattr(trainer, "state", trainer), "global_step", None)
        tracer.write("trained", steps=int(steps) if isinstance(steps, int) else None, failed=failed)

    return ended


def checkpoints(tracer: Tracer, module: Any) -> None:
    """Notes which checkpoints are loaded and saved."""

    def note(event: str, place: int, name: str) -> Callable[..., Callable[[bool], None]]:
        """Returns what notes a path, which is at this place among the arguments, or has this name."""

        def noted(*args: Any, **kwargs: Any) -> Callable[[bool], None]:
            path = kwargs[name] if name in kwargs else args[place]
            return lambda failed: None if failed else tracer.write(event, path=_path(path))

        return noted

    for kind, loaded in (
        ("PreTrainedModel", note("loaded", 1, "pretrained_model_name_or_path")),
        ("PeftModel", note("loaded", 2, "model_id")),
    ):
        if hasattr(module, kind):
            tracer.around(getattr(module, kind), "save_pretrained", "save", note("saved", 1, "save_directory"))
            tracer.around(getattr(module, kind), "from_pretrained", "load", loaded)
    tracer.around(module, "save_file", "save", note("saved", 1, "filename"))
    tracer.around(module, "load_file", "load", note("loaded", 0, "filename"))


def merges(tracer: Tracer, module: Any) -> None:
    """Notes merges of checkpoints and of adapters."""
    owners = [getattr(module, name) for name in ("LoraModel", "BaseTuner") if hasattr(module, name)]
    for owner in (module, *owners):
        for name in ("run_merge", "add_weighted_adapter", "merge_and_unload"):
            tracer.around(owner, name, "merge", lambda *_, name=name, **__: tracer.write("merged", how=name))


WATCHED: dict[str, Callable[[Tracer, Any], None]] = {
    "torch.optim.optimizer": optimizers,
    "transformers.generation.utils": generators,
    "vllm.entrypoints.llm": generators,
    "vllm.v1.engine.async_llm": generators,
    "transformers.trainer": trainers,
    "verl.trainer.ppo.ray_trainer": trainers,
    "transformers.modeling_utils": checkpoints,
    "peft.peft_model": checkpoints,
    "safetensors.torch": checkpoints,
    "peft.tuners.lora.model": merges,
    "peft.tuners.tuners_utils": merges,
    "mergekit.merge": merges,
}


class Finder:
    """Patches a library when it has been imported; otherwise, imports are as they were."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Finds a watched module as the other finders do; None for all others."""
        is_trainer = name == "trl" or (name.startswith("trl.") and name.endswith("trainer"))
        patch = trainers if is_trainer else WATCHED.get(name)
        if patch is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._tracer.safely(self._wrap, spec.loader, patch)
                return spec
        return None

    def _wrap(self, loader: Any, patch: Callable[[Tracer, Any], None]) -> None:
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            self._tracer.safely(patch, self._tracer, module)

        loader.exec_module = exec_module


def install(path: str) -> None:
    """Begins to trace this process and those that it forks."""
    import atexit

    tracer = Tracer(path)
    sys.meta_path.insert(0, Finder(tracer))
    atexit.register(tracer.safely, tracer.flush)
    os.register_at_fork(after_in_child=tracer.forget)


def _make_way() -> None:
    """Leaves the path to libraries as it would be without this file, and runs the `sitecustomize` there, if any."""
    ours = sys.modules.pop(__name__)
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != HERE]
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


if __name__ == "sitecustomize":
    if os.environ.get(VARIABLE):
        Tracer.safely(install, os.environ[VARIABLE])
    _make_way()
