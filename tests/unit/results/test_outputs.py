"""Tests that the outputs of a run's grades are found, joined with their verdicts, and in the manifest."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from a2rl.cli.commands import app
from a2rl.core.errors import UsageError
from a2rl.core.files import read_model
from a2rl.grading.job import GradeResult
from a2rl.grading.outputs import outputs_path
from a2rl.results.manifest import changed_files, manifest_of
from a2rl.results.outputs import outputs_of
from a2rl.run.events import SubmissionAccepted
from tests.run_maker import Finished, finished_run, write_outputs

ANSWER = "first I think " * 2000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run whose second submission and whose base model have outputs."""
    found = finished_run(tmp_path_factory.mktemp("outputs") / "checkout")
    digest = found.run.ledger.events(SubmissionAccepted)[1].weights_digest
    for result in (found.run.items(digest, "public"), found.run.baseline_items):
        write_outputs(result, ANSWER)
    return found


def test_outputs_have_the_verdicts_of_their_items(finished: Finished) -> None:
    digest = finished.run.ledger.events(SubmissionAccepted)[1].weights_digest
    items = read_model(finished.run.items(digest, "public"), GradeResult).items
    found = list(outputs_of(finished.run, 2))
    assert [(each.item, each.verdict, each.value) for each in found] == [
        (item.id, item.verdict, item.value) for item in items
    ]
    assert {each.turns[0].answer for each in found} == {ANSWER}
    assert len(list(outputs_of(finished.run, of_base_model=True))) == 8


def test_a_grade_whose_outputs_were_not_kept_is_named(finished: Finished) -> None:
    with pytest.raises(UsageError, match="the outputs of submission 1 are not in run"):
        list(outputs_of(finished.run, 1))


def test_outputs_are_in_the_manifest_so_that_a_change_is_found(finished: Finished) -> None:
    manifest, file = manifest_of(finished.run), outputs_path(finished.run.baseline_items)
    path = str(file.relative_to(finished.run.root))
    assert path in manifest.files
    kept = file.read_bytes()
    file.write_bytes(kept + gzip.compress(b""))
    assert changed_files(finished.run, manifest, below="grades/") == [f"{path} was changed after the run had ended"]
    file.write_bytes(kept)


def test_the_command_shows_an_item_in_full_and_all_items_as_json(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(finished.settings.root))
    shown = CliRunner().invoke(app, ["outputs", finished.run.id, "--item", "0", "--base-model"])
    assert ANSWER.strip() in " ".join(shown.stdout.split())
    listed = CliRunner().invoke(app, ["outputs", finished.run.id, "--base-model", "--json"])
    assert [row["item"] for row in json.loads(listed.stdout)] == [str(n) for n in range(8)]
