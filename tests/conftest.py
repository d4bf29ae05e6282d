"""Fixtures for all tests: a separate checkout, and a small but real base model."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from a2rl.core import secrets
from a2rl.core.settings import Settings
from a2rl.grading import receiving
from a2rl.grading.submission_checks import check_files
from a2rl.run.directory import RunDir
from tests.run_maker import REPOSITORY, checkout, make_run
from tests.small_model import build_base_model

# Before torch is loaded, here and in children: spinning threads slow small models 10-40 fold on shared cores.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
# The tests start hundreds of processes, and each would compile the library anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
for _ours in ("A2RL_ROOT", "MLFLOW_TRACKING_URI"):
    os.environ.pop(_ours, None)


def pytest_xdist_auto_num_workers() -> int:
    """Tests wait for their processes, so there is one worker more than cores; each takes a gigabyte or two."""
    return min(len(os.sched_getaffinity(0)), 7) + 1


@pytest.fixture(autouse=True)
def only_the_tests_own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets the secrets that other tests registered in this process."""
    monkeypatch.setattr(secrets, "_known", secrets.Scrubber({}))


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
    """A real Qwen3 checkpoint of 20 kB with a BPE tokenizer. It is shared: copy it before you change it."""
    return build_base_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="session", autouse=True)
def checks_in_process() -> Iterator[None]:
    """Checks submissions in the test's own process, which is faster. test_caps.py tests the check in another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receiving, "check_apart", lambda _settings, folder, required: check_files(folder, required))
        yield


@pytest.fixture
def new_run(settings: Settings, base_model: Path) -> Callable[..., RunDir]:
    """Returns a function that makes a run after setup and baseline; keywords are settings of its spec."""

    def make(**changes: object) -> RunDir:
        return make_run(settings, base_model, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture
def run(new_run: Callable[..., RunDir]) -> RunDir:
    """A run under the strict protocol whose agent is working."""
    return new_run()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with copies of the real data sets, if this machine has them."""
    folder = Path(os.environ.get("A2RL_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"the real data is not on this machine: {folder} (set A2RL_SHARED_DATA)")
    return folder
