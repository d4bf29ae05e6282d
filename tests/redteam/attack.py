"""One attack: a file with the agent's program and a check of its effects."""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from a2rl.core.errors import UsageError, unknown_name

FOLDER = Path(__file__).with_name("attacks")
LEVELS = ("sandbox", "run")
BY_SYSTEM_CALLS = (
    "watch_hidden_names", "watch_with_dnotify", "watch_with_fanotify", "change_modes", "change_times", "change_owners",
    "change_attributes", "change_flags", "slow_the_grader", "move_the_grader", "lease_code_files",
    "signal_by_an_open_file", "listen_on_another_interface", "look_at_shared_memory", "handles_of_hidden_files",
    "race_the_broker", "flood_the_broker", "send_datagrams_outside",
)  # fmt: skip
"""Attacks that only the rules for system calls stop, whatever else a sandbox is made of."""


@dataclass(frozen=True)
class Attack:
    """A file of `attacks/`."""

    path: Path
    goal: str
    """What the attacker wants, in one line."""
    must_hold: str
    level: Literal["sandbox", "run"]
    spec: Mapping[str, Any]
    """Settings of the run that differ from the arena's."""
    prepare: Callable[[ExitStack, Path], Mapping[str, Any]] | None
    """Runs outside before the run: may start servers in the stack and write into the folder; returns, as needed,
    `agent` (keys of an agent.yaml), `environ` (the user's variables) and `spec`."""
    held: Callable[[Any], str] | None
    """Runs outside afterwards; returns what the attack achieved, or ""."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.path.stem

    @classmethod
    def load(cls, path: Path) -> "Attack":
        """Reads a file.

        Raises:
            UsageError: the file is not an attack.
        """
        module = _module(path)
        level = getattr(module, "LEVEL", None)
        if level not in LEVELS or not callable(getattr(module, "attack", None)) or not module.__doc__:
            raise UsageError(f"{path} needs a docstring, LEVEL = 'sandbox' or 'run', and a function attack(scene)")
        goal, _, rest = module.__doc__.strip().partition("\n")
        held = getattr(module, "held", None)
        spec, prepare = getattr(module, "SPEC", {}), getattr(module, "prepare", None)
        return cls(path, goal, " ".join(rest.split()), level, spec, prepare, held)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"attack_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_attacks(names: tuple[str, ...] = (), folder: Path = FOLDER) -> list[Attack]:
    """Loads all attacks, or those named; a name may also be the path of another file.

    Raises:
        UsageError: an attack does not exist.
    """
    return [Attack.load(path) for path in _files(names, folder)]


def _files(names: tuple[str, ...], folder: Path) -> Iterator[Path]:
    known = {path.stem: path for path in sorted(folder.glob("*.py"))}
    if not names:
        yield from known.values()
    for name in names:
        if name.endswith(".py") and Path(name).is_file():
            yield Path(name).resolve()
        elif name in known:
            yield known[name]
        else:
            raise unknown_name("attack", name, known)


class Outcome(NamedTuple):
    """The outcome of one attempt."""

    name: str
    level: str
    user: str
    sandbox: str
    tried: bool
    """False if this machine lacks what the attack needs; `stopped_by` says what."""
    stopped_by: str
    """What stopped the attack; empty where it succeeded."""
    succeeded: bool
    achieved: str = ""
    """What it achieved, if anything."""
    seconds: float = 0.0
