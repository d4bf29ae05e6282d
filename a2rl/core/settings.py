"""Paths of the project and settings from the environment: the only module that reads `os.environ`.

settings = Settings.load()
settings.runs / "gsm8k-scripted-..." / "spec.json"
"""

import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a2rl import __version__
from a2rl.core.errors import UsageError

ROOT_MARK = "params.yaml"
MADE_BY = ".a2rl-version"
"""The file with the version of a2rl that made a project; a checkout has none, because it has its own a2rl."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
WAY_OUT = (
    *PROXIES,
    *(name.lower() for name in PROXIES),
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)
"""How this machine reaches others: its proxy, and the certificates that it trusts."""
BRACKETS = re.compile(r"^\[([^]]*)\]$")
"""Around an IPv6 address, where not every program expects them."""
_handed_over: dict[str, str] = {}


class Below:
    """A path below the `root` of an object: `logs = Below("logs")`."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, instance: Any, _: object = None) -> Path:
        """Returns the path."""
        return Path(instance.root, *self._parts)


@dataclass(frozen=True, slots=True)
class Settings:
    """The folders of one project: a checkout, or a folder that `a2rl init` made. What is written is below `root`."""

    root: Path
    environ: dict[str, str] = field(repr=False)
    """The environment, with the keys that were handed over. Child processes get only some of these variables."""

    @classmethod
    def load(cls, start: Path | None = None) -> "Settings":
        """Finds the project: $A2RL_ROOT, else the closest one at or above `start`, else the checkout with this file.

        Raises:
            UsageError: There is none, A2RL_ROOT does not name one, or another version of a2rl made it.
        """
        _keep_loopback_direct(os.environ)
        environ = {**os.environ, **_handed_over}
        if named := environ.get("A2RL_ROOT"):
            if not (Path(named) / ROOT_MARK).is_file():
                raise UsageError(f"A2RL_ROOT={named} has no {ROOT_MARK}: point it at a project of a2rl, or unset it")
            return cls(_of_this_version(Path(named).resolve()), environ)
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents, Path(__file__).resolve().parents[2]):
            if (folder / ROOT_MARK).is_file() and (folder / "stages").is_dir():
                return cls(_of_this_version(folder), environ)
        raise UsageError(
            f"{here} is not in a project of a2rl: make one with `a2rl init FOLDER` and change into it, or set A2RL_ROOT"
        )

    def provide_home(self) -> None:
        """Gives this process a home folder if its user has none, because some libraries fail without one."""
        try:
            Path.home()
        except RuntimeError:
            os.environ["HOME"] = str(self.root / ".prefect" / "home")

    @staticmethod
    def hand_over(keys: Mapping[str, str]) -> None:
        """Gives this process keys that must not be in its environment, where other processes could read them."""
        _handed_over.update(keys)

    @staticmethod
    def handed_over() -> tuple[str, ...]:
        """Returns the names of the keys that were handed over."""
        return tuple(_handed_over)

    @property
    def runs(self) -> Path:
        """The folder with one folder for each run; it may be a link to another disk."""
        return (self.root / "runs").resolve()

    trusted_runs = Below(".trusted-runs")
    """The file with the digests of the settings of all runs that were made here: see a2rl/run/owner.py."""
    fetched = Below(".fetched")
    """The folder with what reports need of runs that are only in the store."""
    reports = Below("reports")
    """The folder of the reports over many runs."""
    rehearsals = Below("rehearsals")
    """The folder of what rehearsals found."""
    models = Below("models")
    """The folder of the base models that this repository builds."""
    base_trials = Below("data", "base-models")
    """The folder with what the trials of base models found, by their digests."""
    baselines = Below("baselines")
    """The folder of the baselines' scores."""
    mlruns = Below("mlruns")
    """The folder of MLflow's database and artifacts."""

    @property
    def vllm_python(self) -> Path:
        """The interpreter of the environment that `scripts/setup_environment.sh vllm` builds."""
        return Path(self.environ.get("A2RL_VLLM_PYTHON") or self.root / ".venv-vllm/bin/python")

    @property
    def tasks_python(self) -> Path:
        """The interpreter of the environment with packages of others that make tasks."""
        return Path(self.environ.get("A2RL_TASKS_PYTHON") or self.root / ".venv-tasks/bin/python")

    @property
    def agent_python(self) -> Path | None:
        """The interpreter of the environment for agents (`scripts/setup_environment.sh agent`), or None."""
        if named := self.environ.get("A2RL_AGENT_PYTHON"):
            return Path(named)
        folder = self.root / ".venv-agent"
        return folder / "bin/python" if (folder / ".installed").is_file() else None  # the mark is written last

    @property
    def python_bin(self) -> Path:
        """The folder of the running interpreter, with whose environment agents train unless they have their own."""
        return Path(sys.executable).parent

    @property
    def store(self) -> str:
        """The object store to which runs are copied, `file:///folder` or `s3://bucket/prefix`; empty: none."""
        return self.environ.get("A2RL_STORE", "")

    @property
    def claims(self) -> str:
        """The Postgres database that says which machine works on a run; empty: none."""
        return self.environ.get("A2RL_CLAIMS", "")

    judgements = Below("data", "judgements.db")
    """The cache of paid judge answers, shared by all runs."""
    searches = Below("data", "searches.db")
    """The cache of live web searches, shared by all runs."""

    @property
    def gpu_locks(self) -> Path:
        """The folder of the locks of GPUs, the same one for all checkouts and users of this machine."""
        return Path(self.environ.get("A2RL_GPU_LOCKS") or "/tmp/a2rl-gpus")

    pretraining = Below("data", "pretraining")
    """The folder of the pretraining data of `tiny`, with one file for each task."""

    def data(self, task_id: str, variant: str) -> Path:
        """Returns the folder with `visible/` (for the agent) and `hidden/` (for the grader) of a task."""
        return self.root / "data" / variant / task_id

    def drawn(self, draw: str, task_id: str) -> Path:
        """Returns the folder with the `hidden/` that a draw gives for a task's mini variant."""
        return self.root / "data" / "drawn" / draw / task_id

    def forwarded(self, names: tuple[str, ...]) -> dict[str, str]:
        """Returns the variables among `names` that are set; an agent sees nothing else of the user's environment.

        A key that was read from a file often ends in a line break, which no header may contain.
        """
        return {name: self.environ[name].strip() for name in names if name in self.environ}

    def path_after(self, *folders: Path) -> str:
        """Returns a PATH with some folders before those of this process."""
        return os.pathsep.join([*map(str, dict.fromkeys(folders)), self.environ.get("PATH", os.defpath)])

    def keys(self, names: tuple[str, ...]) -> dict[str, str]:
        """Returns the keys among `names` that are given; an empty variable is no key."""
        return {name: key for name, key in self.forwarded(names).items() if key}


def _of_this_version(root: Path) -> Path:
    made_by = (root / MADE_BY).read_text(encoding="utf-8").strip() if (root / MADE_BY).is_file() else __version__
    if made_by != __version__:
        raise UsageError(
            f"{root} was made by a2rl {made_by}, and this is a2rl {__version__}: install that version, or make a new "
            "project with `a2rl init FOLDER`, and move `runs` and what you have changed there"
        )
    return root


def enter_checkout() -> dict[str, str]:
    """Prefect calls this before a flow run: it makes `flows` importable, whatever the worker's folder is.

    Nobody sees an error of this function. So the flow itself, whose errors Prefect shows, says what is wrong with
    A2RL_ROOT.
    """
    try:
        root = Settings.load().root
    except UsageError:
        root = Path(__file__).resolve().parents[2]
    os.chdir(root)
    sys.path.insert(0, str(root))
    return {"directory": str(root)}


def _keep_loopback_direct(environ: MutableMapping[str, str]) -> None:
    """Excepts this machine from the user's proxy: our services, and those of Prefect and MLflow, answer here only.

    Programs disagree on which spelling of the variable counts, and which one of the certificates they read.
    """
    if any(environ.get(name) for name in (*PROXIES, *map(str.lower, PROXIES))):
        known = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
        hosts = [host for each in known.split(",") if (host := BRACKETS.sub(r"\1", each.strip()))]
        environ["no_proxy"] = environ["NO_PROXY"] = ",".join(dict.fromkeys((*hosts, *LOOPBACK)))
    if trusted := environ.get("SSL_CERT_FILE") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE"):
        environ.setdefault("SSL_CERT_FILE", trusted)
        environ.setdefault("REQUESTS_CA_BUNDLE", trusted)
