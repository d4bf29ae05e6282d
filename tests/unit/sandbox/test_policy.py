"""Tests what an agent may read of a folder that contains what it must not read, such as an environment with a2rl."""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.sandbox.isolation import SandboxKind
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
