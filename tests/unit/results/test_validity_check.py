import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import IntegrityError
from a2rl.results.verify.run import check_validity
from a2rl.run.directory import RunDir
from a2rl.run.events import ValidityDecided
from a2rl.validity.record import Evidence, Finding, decide, lower
from tests.run_maker import finished_run

FLAG = Finding.of("no-code", "flag", "No code was recorded.", Evidence(what="the submission", seq=5, value=1.5))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that was valid, and was flagged later."""
    found = finished_run(tmp_path_factory.mktemp("validity") / "checkout").run
    check_validity(found)
    decide(found, [], 0)
    lower(found, [FLAG])
    return found


def test_a_validity_that_only_became_worse_is_sound(run: RunDir) -> None:
    check_validity(run)


def raised(record: dict[str, Any]) -> None:
    record["validity"]["word"] = "valid"


def forgotten(record: dict[str, Any]) -> None:
    record["validity"]["findings"] = []


def reworded(record: dict[str, Any]) -> None:
    record["validity"]["findings"][0]["text"] = "All code was recorded."


def moved(record: dict[str, Any]) -> None:
    record["validity"]["findings"][0]["evidence"][0]["seq"] = 6


@pytest.mark.parametrize("change", [raised, forgotten, reworded, moved])
def test_a_changed_record_is_noticed(run: RunDir, change: Callable[[dict[str, Any]], None]) -> None:
    path: Path = run.record_path("validity")
    kept = path.read_text()
    record = json.loads(kept)
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(IntegrityError):
        check_validity(run)
    path.write_text(kept)


def test_a_validity_that_became_better_is_noticed(run: RunDir) -> None:
    last = run.ledger.events(ValidityDecided)[-1]
    run.ledger.append(last.model_copy(update={"validity": "valid", "findings": ()}))
    with pytest.raises(IntegrityError, match="became better"):
        check_validity(run)
