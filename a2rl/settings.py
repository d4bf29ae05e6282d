"""Where things live and what the environment may change: the only module that reads `os.environ`.

settings = Settings.load()
settings.runs / "gsm8k-scripted-..." / "spec.json"
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from a2rl.errors import UsageError

ROOT_MARK = "params.yaml"
_handed_over: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders of one checkout. Everything the pipeline writes lies below `root`."""

    root: Path
    environ: dict[str, str] = field(repr=False)
    """The environment at start, and the keys that were handed over; children get a selection of it, never all of it."""

    @classmethod
    def load(cls, start: Path | None = None) -> "Settings":
        """Finds the checkout: $A2RL_ROOT, else the folder of `start` or above with a params.yaml, else this file's."""
        environ = {**os.environ, **_handed_over}
        if named := environ.get("A2RL_ROOT"):
            if not (Path(named) / ROOT_MARK).is_file():
                raise UsageError(f"A2RL_ROOT={named} has no {ROOT_MARK}: point it at a checkout of a2rl, or unset it")
            return cls(Path(named).resolve(), environ)
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
            if (folder / ROOT_MARK).is_file() and (folder / "stages").is_dir():
                return cls(folder, environ)
        raise UsageError(f"no {ROOT_MARK} in {here} or above: run this inside a checkout of a2rl, or set A2RL_ROOT")

    @staticmethod
    def hand_over(keys: Mapping[str, str]) -> None:
        """Makes keys known to this process that are not in its environment, where others could read them."""
        _handed_over.update(keys)

    @staticmethod
    def handed_over() -> tuple[str, ...]:
        """Their names."""
        return tuple(_handed_over)

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def baselines(self) -> Path:
        return self.root / "baselines"

    @property
    def mlruns(self) -> Path:
        return self.root / "mlruns"

    @property
    def vllm_python(self) -> Path:
        """The interpreter of the environment that `make setup-vllm` builds."""
        return Path(self.environ.get("A2RL_VLLM_PYTHON") or self.root / ".venv-vllm/bin/python")

    @property
    def python_bin(self) -> Path:
        """Where the interpreter that runs this lies, and with it the libraries that agents train with."""
        return Path(sys.executable).parent

    @property
    def judgements(self) -> Path:
        """The answers of judges that were paid for, for all runs."""
        return self.root / "data" / "judgements.db"

    @property
    def searches(self) -> Path:
        """What searches of the live web found, for all runs."""
        return self.root / "data" / "searches.db"

    @property
    def pretraining(self) -> Path:
        """What `tiny` reads: one file for each task."""
        return self.root / "data" / "pretraining"

    def data(self, task_id: str, variant: str) -> Path:
        """The folder that holds `visible/` (for the agent) and `hidden/` (for the grader) of a task."""
        return self.root / "data" / variant / task_id

    def forwarded(self, names: tuple[str, ...]) -> dict[str, str]:
        """The variables among `names` that are set; all an agent ever sees of the user's environment."""
        return {name: self.environ[name] for name in names if name in self.environ}
