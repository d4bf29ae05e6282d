"""Tests a2rl as an installed wheel, without its sources: it finds a checkout, or says what it needs."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from a2rl import __version__


class Installation:
    """A virtual environment with the wheel, which shares the dependencies of this one."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
        # The .pth files of a folder that is added this way are not read, so this checkout's sources are not found.
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        self._python = folder / "bin" / "python"

    def run(self, cwd: Path, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Runs `a2rl` by its entry point."""
        return subprocess.run(
            [self._python, "-P", "-c", "from a2rl.cli import main; main()", *arguments],
            cwd=cwd,
            env={"PATH": os.environ["PATH"], "HOME": str(cwd), "COLUMNS": "200", **environ},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """Builds the wheel from a copy, because building leaves files in the source folder."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z", "a2rl", "pyproject.toml", "README.md"],
        cwd=repository, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, files):
        if (repository / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((repository / name).read_bytes())
    build = "from setuptools.build_meta import build_wheel; import sys; build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, folder], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    return Installation(tmp_path_factory.mktemp("installed") / "venv", wheel)


@pytest.fixture
def checkout(tmp_path: Path, repository: Path) -> Path:
    """A checkout without the folder `a2rl`."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("agents", "flows", "stages", "tasks", "params.yaml"):
        (folder / name).symlink_to(repository / name)
    return folder


def test_the_wheel_holds_the_whole_library_and_nothing_else(wheel: Path) -> None:
    source = wheel.parent / "source"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "a2rl").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == wanted


def test_outside_a_checkout_only_help_works(installed: Installation, tmp_path: Path) -> None:
    """Other commands say what they need."""
    assert installed.run(tmp_path, "--help").returncode == 0
    assert installed.run(tmp_path, "--version").stdout == f"a2rl {__version__}\n"
    for command in ("tasks", "run", "bench"):
        done = installed.run(tmp_path, command)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "checkout of a2rl" in done.stderr
        assert "A2RL_ROOT" in done.stderr


def test_a_checkout_that_lacks_a_folder_is_refused_by_its_name(
    installed: Installation, checkout: Path, tmp_path: Path
) -> None:
    (checkout / "flows").unlink()
    done = installed.run(tmp_path, "run", A2RL_ROOT=str(checkout))
    assert (done.returncode, "no folder flows" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_in_a_checkout_or_with_a2rl_root_its_tasks_are_used(
    installed: Installation, checkout: Path, tmp_path: Path
) -> None:
    here = installed.run(checkout, "tasks")
    elsewhere = installed.run(tmp_path, "tasks", A2RL_ROOT=str(checkout))
    for done in (here, elsewhere):
        assert done.returncode == 0, done.stderr
        assert "deepsearchqa" in done.stdout


@pytest.mark.slow
def test_the_flow_of_a_checkout_runs(installed: Installation, checkout: Path, tmp_path: Path) -> None:
    done = installed.run(tmp_path, "run", "--agent", "noop", "--budget", "10s", A2RL_ROOT=str(checkout))
    assert done.returncode == 2
    assert "`tiny` is not built yet" in done.stderr
    assert "Traceback" not in done.stderr
