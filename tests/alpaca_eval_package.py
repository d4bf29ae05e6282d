"""The alpaca-eval package, with which tests compare: its modules, without its side effects on import."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sklearn import config_context  # type: ignore[import-untyped]

NAME = "alpaca_eval"


def module(name: str) -> ModuleType:
    """Imports a module of the package, such as `utils`, without its `__init__.py`.

    That reads a `.env` file into the environment, and imports clients of several APIs.
    """
    if NAME not in sys.modules:
        spec = importlib.util.find_spec(NAME)
        assert spec is not None, "requirements.lock has alpaca-eval"
        sys.modules[NAME] = importlib.util.module_from_spec(spec)  # empty
    return importlib.import_module(f"{NAME}.{name}")


def length_controlled_win_rate(annotations: Sequence[Mapping[str, Any]], calibration: Path) -> float:
    """Returns the package's figure, in percent, with its only download replaced by a file."""
    statistics = module("metrics.glm_winrate")
    with pytest.MonkeyPatch.context() as patch, config_context():  # a setting of sklearn is changed, too
        patch.setattr(statistics, "hf_hub_download", lambda **_: str(calibration))
        return float(
            statistics.get_length_controlled_winrate(annotations, save_weights_dir=None)["length_controlled_winrate"]
        )
