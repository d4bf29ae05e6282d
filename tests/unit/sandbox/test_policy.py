"""Tests what an agent may read of a folder that contains what it must not read, such as an environment with a2rl."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import a2rl
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.sandbox.command import Confinement
from a2rl.sandbox.isolation import SandboxKind
from a2rl.sandbox.launch import bwrap_command
from a2rl.sandbox.selection import select_sandbox, try_in_sandbox

LOOK = """
import pathlib, sys
for name in sys.argv[2:]:
    try:
        print(name, pathlib.Path(sys.argv[1], name).read_text())
    except OSError as error:
        print(name, "closed")
print("listed", "package" in [path.name for path in pathlib.Path(sys.argv[1]).iterdir()])
"""


@pytest.mark.parametrize("kind", ["landlock", "bwrap"])
def test_all_but_the_project_is_open_in_a_folder_above_it(
    kind: SandboxKind, settings: Settings, tmp_path: Path
) -> None:
    """A link does not lead around this."""
    (settings.root / "items").write_text("hidden")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module").write_text("open")
    (tmp_path / "link").symlink_to("package")
    (tmp_path / "again").symlink_to(settings.root)
    (tmp_path / "itself").symlink_to(".")
    try:
        isolation = select_sandbox(kind, settings)
    except UsageError as error:
        pytest.skip(str(error))
    names = ("package/module", "link/module", "checkout/items", "again/items", "itself/checkout/items")
    ended = try_in_sandbox(
        [sys.executable, "-I", "-c", LOOK, str(tmp_path), *names], isolation, settings, read=(tmp_path,)
    )
    assert ended.output.splitlines() == [
        "package/module open", "link/module open", *(f"{name} closed" for name in names[2:]), "listed True",
    ]  # fmt: skip


def test_in_bwrap_there_are_the_device_files_of_gpus() -> None:
    use = ("/dev/null", "/dev/nvidia0", "/dev/dxg", "/proc")
    command = bwrap_command(Confinement((), (), use, (), (), "", bwrap="/usr/bin/bwrap"), "/", {})
    assert [command[at + 1] for at, word in enumerate(command) if word == "--dev-bind-try"] == list(use[1:3])


def test_in_bwrap_there_is_only_what_the_launcher_imports(tmp_path: Path) -> None:
    """The agent can read that where the kernel has no Landlock; the generators of the mini data are elsewhere."""
    package = Path(a2rl.__file__).parent
    command = bwrap_command(Confinement((), (), (), (), (), "", bwrap="/usr/bin/bwrap"), "/", {})
    bound = {path for path in command if Path(path).is_relative_to(package)}
    assert bound == {str(package / name) for name in ("__init__.py", "linux", "sandbox")}
    (copy := tmp_path / "a2rl").mkdir()
    shutil.copyfile(package / "__init__.py", copy / "__init__.py")
    for name in ("linux", "sandbox"):
        shutil.copytree(package / name, copy / name)
    program = "import sys; sys.path.insert(0, sys.argv[1]); from a2rl.sandbox import launch; print(launch.__file__)"
    start = [sys.executable, "-I", "-S", "-c", program, str(tmp_path)]
    done = subprocess.run(start, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(copy / "sandbox/launch.py"), done.stderr


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users may enter."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_an_agent_may_be_given_thousands_of_single_files(settings: Settings, open_folder: Path) -> None:
    """They are more than fit into one argument of a command, as the data of alfworld on another disk is."""
    files = [open_folder / f"{'game-' * 20}{number}" for number in range(1500)]
    for file in files:
        file.write_text("open")
    program = "import sys; print(*(open(name).read() for name in sys.argv[1:]))"
    command = [sys.executable, "-I", "-S", "-c", program, str(files[0]), str(files[-1])]
    ended = try_in_sandbox(command, select_sandbox("landlock", settings), settings, read=tuple(files))
    assert ended.output == "open open"
