"""Fixtures for all tests: a checkout of one's own, and a base model that is small and real."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.run import RunDir
from a2rl.settings import Settings
from tests.run_maker import make_run
from tests.small_model import build_base_model

# Before torch is loaded, here and in children: spinning threads slow small models 10-40 fold on shared cores.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
for _ours in ("A2RL_ROOT", "MLFLOW_TRACKING_URI"):
    os.environ.pop(_ours, None)

REPOSITORY = Path(__file__).resolve().parent.parent


def checkout(folder: Path) -> Settings:
    """A checkout whose code is this one's and whose data, runs, baselines and MLflow store are its own."""
    for name in ("a2rl", "agents", "flows", "stages", "tasks", "params.yaml"):
        (folder / name).symlink_to(REPOSITORY / name)
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return Settings(folder, {**environ, "CUDA_VISIBLE_DEVICES": ""})


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folder = tmp_path / "checkout"
    folder.mkdir()
    return checkout(folder)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real Qwen3 checkpoint of 20 kB with a BPE tokenizer; shared, so a test that spoils it copies it first."""
    return build_base_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def new_run(settings: Settings, base_model: Path) -> Callable[..., RunDir]:
    """Makes a run after setup and baseline; settings of its spec are keywords."""

    def make(**changes: object) -> RunDir:
        return make_run(settings, base_model, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture
def run(new_run: Callable[..., RunDir]) -> RunDir:
    """A strict run whose agent is at work."""
    return new_run()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Copies of the real data sets, where this machine has them."""
    folder = Path(os.environ.get("A2RL_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"the real data is not on this machine: {folder} (set A2RL_SHARED_DATA)")
    return folder
