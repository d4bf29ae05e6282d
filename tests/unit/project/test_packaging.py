"""Tests the package: its version has one source and is described, and no folder of the library is left out."""

from importlib.metadata import version
from pathlib import Path

import a2rl
from a2rl.task_api.catalog import SKELETONS


def test_the_installed_version_is_the_one_in_the_source() -> None:
    assert version("a2rl") == a2rl.__version__


def test_the_version_has_a_section_in_the_changelog(repository: Path) -> None:
    assert f"\n## [{a2rl.__version__}]" in (repository / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_folder_with_code_is_a_package(repository: Path) -> None:
    folders = {path.parent for path in (repository / "a2rl").rglob("*.py")}
    copied = {SKELETONS / "static", SKELETONS / "interactive"}  # named in pyproject.toml as data of the package
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == copied
