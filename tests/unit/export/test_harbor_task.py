"""Tests the folder of a task for Harbor: what is on which side, and what its verifier says."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from a2rl.cli.commands import app
from a2rl.core.errors import InfrastructureError
from a2rl.core.files import file_digest
from a2rl.export import harbor_task
from tests.run_maker import REPOSITORY, checkout
from tests.small_model import build_base_model, trained_copy


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a small model and the mini data of gsm8k."""
    folder = tmp_path_factory.mktemp("harbor")
    settings = checkout(folder)
    for lock in REPOSITORY.glob("requirements*.lock"):
        (folder / lock.name).symlink_to(lock)
    build_base_model(settings.models / "small")
    trained_copy(settings.models / "small", folder / "trained", 1)
    return folder


def run(root: Path, *arguments: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A2RL_ROOT", str(root))
        return CliRunner().invoke(app, ["export", *arguments])


@pytest.fixture(scope="module")
def exported(root: Path) -> Path:
    target, small = root / "exported", root / "models" / "small"
    found = run(root, "harbor", "gsm8k", "-o", str(target), "--model", str(small), "--solution", str(root / "trained"))
    assert found.exit_code == 0, found.output
    return target


def grade(root: Path, submitted: Path) -> dict[str, float]:
    reward = root / "reward.json"
    reward.unlink(missing_ok=True)
    given = ("--base-model", str(root / "models" / "small"), "--submitted", str(submitted), "--reward", str(reward))
    run(root, "grade-for-harbor", "--task", "gsm8k", *given)
    return dict(json.loads(reward.read_text()))


def test_the_agents_side_has_nothing_of_the_hidden_data(root: Path, exported: Path) -> None:
    hidden = {file_digest(path) for path in (root / "data/mini/gsm8k/hidden").iterdir()}
    seen = {file_digest(path) for path in (exported / "environment").rglob("*") if path.is_file()}
    assert hidden & seen == {file_digest(root / "data/mini/gsm8k/visible/shots.jsonl")}
    kept = exported / "tests/checkout/data/mini/gsm8k/hidden"
    assert {file_digest(path) for path in kept.iterdir()} == hidden


def test_the_verifier_is_apart_and_gets_the_checkpoint_alone(exported: Path) -> None:
    config = tomllib.loads((exported / "task.toml").read_text())
    assert config["verifier"]["environment_mode"] == "separate"
    assert config["artifacts"] == ["/workspace/output/final"]
    assert config["verifier"]["environment"]["network_mode"] == "no-network"
    assert config["agent"] == {"timeout_sec": 1800.0, "user": "agent"}


def test_scripts_can_be_run_and_texts_are_filled_in(exported: Path) -> None:
    places = (path for pattern in ("*.*", "*/Dockerfile", "*/*.sh") for path in exported.glob(pattern))
    assert not [path for path in places if "{{" in path.read_text()]
    assert all((exported / name).stat().st_mode & 0o100 for name in ("tests/test.sh", "solution/solve.sh"))
    assert "/solution/checkpoint" in (exported / "solution/solve.sh").read_text()


def test_what_cannot_be_graded_earns_nothing(root: Path, tmp_path: Path) -> None:
    assert grade(root, tmp_path / "nothing") == {"reward": 0.0, "valid": 0.0}
    other = shutil.copytree(root / "trained", tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"hidden_size": 5}))
    assert grade(root, other) == {"reward": 0.0, "valid": 0.0}


@pytest.mark.slow
def test_a_checkpoint_earns_its_score(root: Path) -> None:
    found = grade(root, root / "trained")
    assert found["valid"] == 1.0
    assert 0 <= found["reward"] <= 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("deepsearchqa",), "needs a judge or services"),
        (("reasoning_gym:spell_backward",), "in an environment of its own"),
        (("alpacaeval", "--variant", "full"), "needs a judge or services"),
        (("gsm8k", "--solution", "data/mini/gsm8k/visible"), "cannot be graded"),
        (("gsm8k", "--solution", "data/nope"), "data/nope: there is no such folder"),
    ],
)
def test_what_cannot_be_exported_is_named(root: Path, exported: Path, arguments: tuple[str, ...], told: str) -> None:
    task, *more = arguments
    given = [str(root / each) if each.startswith("data/") else each for each in more]
    target, small = root / "refused", root / "models" / "small"
    found = run(root, "harbor", task, "-o", str(target), "--model", str(small), *given)
    assert told in str(found.exception)
    assert not target.exists()


@pytest.mark.parametrize("error", [InfrastructureError("out of memory"), KeyboardInterrupt()])
def test_whatever_goes_wrong_no_half_of_a_folder_is_left(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(harbor_task, "copy_submission", fail)
    target, small = root / "broken", root / "models" / "small"
    solution = ("--solution", str(root / "trained"))
    found = run(root, "harbor", "gsm8k", "-o", str(target), "--model", str(small), *solution)
    assert found.exit_code != 0
    assert not target.exists()


@pytest.mark.network
@pytest.mark.timeout(1800)
def test_harbor_accepts_the_folder(exported: Path, tmp_path: Path) -> None:
    python = shutil.which("python3.12") or shutil.which("python3.13")
    if python is None or subprocess.run([python, "-c", ""], check=False).returncode:
        pytest.skip("Harbor needs Python 3.12")
    subprocess.run([python, "-m", "venv", tmp_path], check=True)
    subprocess.run([tmp_path / "bin" / "pip", "install", "-q", "harbor==0.25.0"], check=True)
    subprocess.run([tmp_path / "bin" / "harbor", "lint", exported], check=True, stdout=sys.stderr)
