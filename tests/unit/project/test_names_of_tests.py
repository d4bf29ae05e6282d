"""Tests that the names of tests can be scanned: none is long, and no two files have the same name."""

import re
from collections import Counter
from pathlib import Path

LONGEST = 60
"""A test whose name says less than needed has a docstring."""


def test_no_name_of_a_test_is_long(repository: Path) -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in (repository / "tests").rglob("test_*.py")}
    names = {(file, name) for file, text in texts.items() for name in re.findall(r"^ *def (test_\w+)", text, re.M)}
    assert len(names) > 2000
    assert [(file, name) for file, name in sorted(names) if len(name) > LONGEST] == []


def test_no_two_files_of_tests_have_the_same_name(repository: Path) -> None:
    files = Counter(path.name for path in (repository / "tests").rglob("test_*.py"))
    assert [name for name, number in files.items() if number > 1] == []
