"""Tests the package: its version has one source, and no file of the library is left out."""

import tomllib
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

import a2rl


def test_the_installed_version_is_the_one_in_the_source() -> None:
    assert version("a2rl") == a2rl.__version__


def test_the_package_contains_every_file_of_the_library(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = ["*.py", *project["tool"]["setuptools"]["package-data"]["*"]]
    files = [path for path in (repository / "a2rl").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert [path for path in files if not any(fnmatch(path.name, pattern) for pattern in patterns)] == []


def test_every_folder_with_code_is_a_package(repository: Path) -> None:
    folders = {path.parent for path in (repository / "a2rl").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []
