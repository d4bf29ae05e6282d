"""Tests that a run's base model and data are found in a moved checkout, and errors if they are missing."""

import shutil
from pathlib import Path

import pytest

from a2rl.core.errors import InfrastructureError
from a2rl.core.files import write_jsonl
from a2rl.core.settings import Settings
from a2rl.grading.service import GradingService
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted, SubmissionRefused
from a2rl.run.inputs import base_model_of, check_inputs, given_model, hidden_of, place_in
from a2rl.run.records import SetupRecord
from stages.grade import grade
from tests.run_maker import FakePool, end_agent, make_run, spec, submit_checkpoint
from tests.small_model import trained_copy


@pytest.fixture
def here(settings: Settings, base_model: Path) -> RunDir:
    """A run whose model and data are in its checkout, as with `tiny`."""
    model = shutil.copytree(base_model, settings.models / "small")
    run = make_run(settings, model, model="tiny")
    ready = run.need("setup", SetupRecord)
    places = {name: place_in(settings.root, getattr(ready, name)) for name in ("base_model", "hidden")}
    assert not any(place.is_absolute() for place in places.values())
    run.write("setup", ready.model_copy(update=places))
    return run


def moved(run: RunDir, settings: Settings, to: Path) -> RunDir:
    """Moves the checkout of a run; returns the run at its new place."""
    for name in ("runs", "models", "data-of"):
        shutil.copytree(settings.root / name, to / name)
        shutil.rmtree(settings.root / name)
    for name in ("a2rl", "tasks", "stages", "params.yaml"):
        (to / name).symlink_to((settings.root / name).resolve())
    return RunDir(to / "runs" / run.id)


def test_a_run_goes_on_in_a_checkout_that_was_moved(here: RunDir, settings: Settings, tmp_path: Path) -> None:
    run = moved(here, settings, tmp_path / "elsewhere")
    found = check_inputs(run)
    assert found.base_model == tmp_path / "elsewhere" / "models" / "small"
    assert found.hidden.is_relative_to(tmp_path / "elsewhere")
    trained_copy(found.base_model, run.workspace / "output" / "v1", seed=1)
    service = GradingService(run, FakePool())  # type: ignore[arg-type]
    accepted, grade = submit_checkpoint(service, "output/v1").outcome.result(10)
    assert accepted.submission_id == 1
    assert grade.result.score is not None


def test_runs_on_another_disk_find_what_is_in_their_checkout(
    settings: Settings, base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the copy that the agent was given."""
    (tmp_path / "large").mkdir()
    (settings.root / "runs").symlink_to(tmp_path / "large")
    model = shutil.copytree(base_model, settings.models / "small")
    run = make_run(settings, model, movable=True)
    shutil.copytree(base_model, run.given / "models" / "small")
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    assert run.root == tmp_path / "large" / run.id
    assert check_inputs(run) == (model, settings.root / "data-of" / run.id / "hidden")


def test_a_missing_base_model_refuses_no_submission(here: RunDir, settings: Settings) -> None:
    service = GradingService(here, FakePool())  # type: ignore[arg-type]
    trained_copy(settings.models / "small", here.workspace / "output" / "v1", seed=1)
    shutil.rmtree(settings.models)
    with pytest.raises(InfrastructureError, match=r"base model of run .* put it back there"):
        submit_checkpoint(service, "output/v1").outcome.result(10)
    assert not here.ledger.events(SubmissionAccepted)
    assert not [event for event in here.ledger.events(SubmissionRefused) if "put it back there" not in event.reason]
    end_agent(here)
    with pytest.raises(InfrastructureError, match="put it back there"):
        grade(here, settings)


def test_the_agents_copy_of_the_base_model_may_serve_if_equal(here: RunDir, settings: Settings) -> None:
    copy = here.given / "models" / "tiny"
    shutil.copytree(settings.models / "small", copy)
    shutil.rmtree(settings.models)
    assert check_inputs(here).base_model == copy
    trained_copy(copy, copy.with_name("other"), seed=3)
    shutil.rmtree(copy)
    copy.with_name("other").rename(copy)
    with pytest.raises(InfrastructureError, match=r"not the one run .* started with"):
        check_inputs(here)


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_hidden_data_that_is_not_there_is_no_result(here: RunDir, settings: Settings, damage: str) -> None:
    trained_copy(settings.models / "small", here.workspace / "output" / "v1", seed=1)
    service = GradingService(here, FakePool())  # type: ignore[arg-type]
    submit_checkpoint(service, "output/v1").outcome.result(10)
    end_agent(here)
    hidden = hidden_of(here)
    if damage == "missing":
        shutil.rmtree(hidden)
    else:
        write_jsonl(hidden / "eval.jsonl", [{"question": "?", "answer": "#### 1"}])
    with pytest.raises(InfrastructureError, match=r"a2rl prepare|start a new run"):
        grade(here, settings)
    assert not here.record_path("grade").exists()


def test_places_outside_of_the_checkout_stay_as_they_are(run: RunDir, base_model: Path) -> None:
    assert run.need("setup", SetupRecord).base_model == base_model
    assert base_model_of(run) == base_model
    assert place_in(Path("/srv/checkout"), base_model) == base_model


def test_the_agents_model_has_one_name_in_every_folder(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that happens to be called like a hub id changes nothing, nor does an @ in a path."""
    (tmp_path / "org" / "v1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for model, name in (("org/v1", "org/v1"), ("org/v1@main", "org/v1"), ("/home/me@site/out/v1", "v1"), ("/v1", "v1")):
        run = RunDir.create(settings.runs, spec(model=model, run_id=f"run-{len(model)}"))
        assert given_model(run).relative_to(run.given / "models") == Path(name)
