"""Tests the full variant's data: the published file, the reference's split, and the pages of a mirror."""

import csv
import json
from pathlib import Path

import pytest

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import file_digest
from tasks.deepsearchqa import prepare as preparing
from tasks.deepsearchqa.prepare import prepare, split_of
from tasks.deepsearchqa.research import Question, read_questions


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the published file, with the same columns and number of rows."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    with (folder / "DSQA-full.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("problem", "problem_category", "answer", "answer_type"))
        for number in range(900):
            kind = "Set Answer" if number % 3 else "Single Answer"
            table.writerow((f"Question {number},\nin two lines?", "Science", f"answer {number}, b", kind))
    monkeypatch.setattr(preparing, "FILE_DIGEST", file_digest(folder / "DSQA-full.csv"))
    return folder


def prepared(mirror: Path, folder: Path) -> tuple[Path, Path]:
    visible, hidden = folder / "visible", folder / "hidden"
    visible.mkdir()
    hidden.mkdir()
    prepare("full", mirror, visible, hidden)
    return visible, hidden


def test_the_split_is_the_references(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [Question(f"Question {number}?", "Single Answer", str(number)) for number in range(900)]
    shuffled = datasets.Dataset.from_list([row._asdict() for row in rows]).shuffle(seed=42)
    train, test = split_of(rows)
    assert [row.problem for row in train] == shuffled[:100]["problem"]
    assert [row.problem for row in test] == shuffled[100:300]["problem"]


def test_full_data_has_100_questions_to_learn_and_200_to_grade(mirror: Path, tmp_path: Path) -> None:
    visible, hidden = prepared(mirror, tmp_path)
    train, test = read_questions(visible / "train.jsonl"), read_questions(hidden / "eval.jsonl")
    assert (len(train), len(test)) == (100, 200)
    assert not {row.problem for row in train} & {row.problem for row in test}
    assert (visible / "prompt.txt").read_text() == (hidden / "prompt.txt").read_text() != ""
    assert not (hidden / "pages").exists()
    assert "none" in json.loads((hidden / "about.json").read_text())["pages"]
    assert {"research", "rollout.py", "decoder"} <= {path.name for path in visible.iterdir()}


def test_a_mirrors_pages_are_for_the_grader(mirror: Path, tmp_path: Path) -> None:
    (mirror / "pages").mkdir()
    (mirror / "pages" / "Lyon.md").write_text("A town.")
    visible, hidden = prepared(mirror, tmp_path)
    assert (hidden / "pages" / "Lyon.md").is_file()
    assert not (visible / "pages").exists()


def test_a_mirror_without_the_file_and_another_file_are_refused(mirror: Path, tmp_path: Path) -> None:
    with (mirror / "DSQA-full.csv").open("a") as file:
        file.write("one more,Science,row,Set Answer\n")
    with pytest.raises(IntegrityError, match="not the published"):
        prepared(mirror, tmp_path)
    (mirror / "DSQA-full.csv").unlink()
    with pytest.raises(UsageError, match=r"no DSQA-full\.csv"):
        preparing.read_published(mirror)
