"""Tests a2rl as an installed wheel, without its sources: it makes projects and works in them."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from a2rl import __version__
from a2rl.cli.machine import init
from a2rl.core.errors import UsageError
from a2rl.core.settings import MADE_BY

APPLICATION = ("agents", "flows", "stages", "tasks")
SETTINGS = (
    ".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "README.md", "docs/**/*.md", "docs/*.png",
    "docs/*.svg", "dvc.lock", "dvc.yaml", "models/.gitignore", "models/dvc.yaml", "models/tiny.loss.csv",
    "models/tiny/*", "params.yaml", "prefect.toml", "prefect.yaml", "requirements*.lock", "scripts/setup_*.sh",
)  # fmt: skip
"""What a project has besides the application."""


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
    wanted = ("a2rl", *APPLICATION, *SETTINGS, "pyproject.toml", "setup.py", "LICENSE")
    patterns = (f":(glob){each}" if "*" in each else each for each in wanted)
    files = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, files):
        if (repository / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, source / name)
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
def project(installed: Installation, tmp_path: Path) -> Path:
    done = installed.run(tmp_path, "init", "mine")
    assert done.returncode == 0, done.stderr
    return tmp_path / "mine"


def test_the_wheel_holds_the_library_and_the_project_only(wheel: Path) -> None:
    source = wheel.parent / "source"

    def files(*patterns: str) -> set[str]:
        found = (path for pattern in patterns for path in source.glob(pattern) if path.is_file())
        return {str(path.relative_to(source)) for path in found if path.suffix != ".pyc"}

    project = files(*(f"{name}/**/*" for name in APPLICATION), *SETTINGS)
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == files("a2rl/**/*") | {f"a2rl/project/{name}" for name in project}


def test_the_pages_that_messages_name_are_in_a_project(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        modules = [archive.read(name).decode() for name in packed if name.endswith(".py")]
    pages = set(re.findall(r"\bREADME\.md|\bdocs/[\w/-]+\.md", "\n".join(modules))) - {"docs/exec.md"}  # Codex's own
    assert {"docs/sandbox.md", "docs/cluster.md"} <= pages
    assert {f"a2rl/project/{page}" for page in pages} <= packed


@pytest.mark.heavy
def test_outside_a_project_commands_say_how_to_make_one(installed: Installation, tmp_path: Path) -> None:
    """Help works."""
    assert installed.run(tmp_path, "--help").returncode == 0
    assert installed.run(tmp_path, "--version").stdout == f"a2rl {__version__}\n"
    for command in ("tasks", "run", "bench"):
        done = installed.run(tmp_path, command)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "is not in a project of a2rl: make one with `a2rl init FOLDER`" in done.stderr
        assert "A2RL_ROOT" in done.stderr


def test_a_project_that_lacks_a_folder_is_refused_by_its_name(
    installed: Installation, project: Path, tmp_path: Path
) -> None:
    shutil.rmtree(project / "flows")
    done = installed.run(tmp_path, "run", A2RL_ROOT=str(project))
    assert (done.returncode, "no folder flows" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_in_a_project_or_with_a2rl_root_its_tasks_are_used(
    installed: Installation, project: Path, tmp_path: Path
) -> None:
    shutil.rmtree(project / "tasks" / "webshop")
    here = installed.run(project / "agents", "tasks")
    elsewhere = installed.run(tmp_path, "tasks", A2RL_ROOT=str(project))
    for done in (here, elsewhere):
        assert done.returncode == 0, done.stderr
        assert "deepsearchqa" in done.stdout
        assert "webshop" not in done.stdout


def test_the_stages_of_dvc_need_no_file_that_a_project_lacks(project: Path) -> None:
    planned = subprocess.run(
        [Path(sys.executable).with_name("dvc"), "repro", "--dry", "data", "corpus", "models/dvc.yaml:smollm2-135m"],
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    assert "python -m stages corpus --task deepsearchqa" in planned.stdout


def test_a_project_has_tiny_and_does_not_train_it_again(project: Path, repository: Path) -> None:
    """All that DVC says of it is that the corpus, from which it was trained, is not here."""
    weights = Path("models", "tiny", "model.safetensors")
    assert (project / weights).read_bytes() == (repository / weights).read_bytes()
    status = subprocess.run(
        [Path(sys.executable).with_name("dvc"), "status", "--json", "tiny"],
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(status.stdout) == {"tiny": [{"changed deps": {"data/pretraining": "deleted"}}]}


def test_a_project_stays_with_the_version_that_made_it(installed: Installation, project: Path) -> None:
    (project / MADE_BY).write_text("0.0.9\n")
    refused = installed.run(project, "tasks")
    assert refused.returncode == 2
    assert f"was made by a2rl 0.0.9, and this is a2rl {__version__}: install that version, or" in refused.stderr
    assert installed.run(project, "init", "../another").returncode == 0


def test_a_project_replaces_nothing(installed: Installation, project: Path) -> None:
    refused = installed.run(project.parent, "init", "mine")
    assert refused.returncode == 2
    assert "mine exists: give a folder that does not exist yet" in refused.stderr


def test_a_checkout_is_a_project_so_it_makes_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="belongs to the checkout"):
        init(tmp_path / "mine")


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(3600)
def test_in_an_empty_environment_a_run_can_be_verified(wheel: Path, repository: Path, tmp_path: Path) -> None:
    """The packages come from an index."""
    programs = tmp_path / "venv" / "bin"
    environ = {"PATH": "/usr/bin:/bin", "COLUMNS": "200"} | {
        name: value for name, value in os.environ.items() if name == "HOME" or name.startswith("PIP_")
    }

    def do(*command: "str | Path", cwd: Path = tmp_path) -> str:
        done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    do(sys.executable, "-m", "venv", "venv")
    do(programs / "pip", "install", "--quiet", "--constraint", repository / "requirements.lock", wheel)
    do(programs / "a2rl", "init", "mine")
    do(programs / "a2rl", "doctor", cwd=tmp_path / "mine")
    said = do(programs / "a2rl", "run", "--agent", "copy-base", "--budget", "30s", "--json", cwd=tmp_path / "mine")
    run_id = json.loads(said.splitlines()[-1])["run_id"]
    do(programs / "a2rl", "verify", run_id, cwd=tmp_path / "mine")
    do(programs / "a2rl", "report", run_id, cwd=tmp_path / "mine")
    assert (tmp_path / "mine" / "runs" / run_id / "report" / "index.html").is_file()
