import errno
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import InfrastructureError, InterruptedByUserError
from a2rl.core.files import write_model
from a2rl.core.processes import Reading
from a2rl.grading.pool import GradingError
from a2rl.run.events import ValidityDecided
from a2rl.run.records import GradeRecord
from a2rl.validity import checks
from a2rl.validity.checks import RunEvidence, run_checks, run_checks_apart
from a2rl.validity.conduct import code, hosts
from a2rl.validity.record import Counted, Finding, Level, ValidityRecord, counted, decide, lower, read_validity
from stages.validity import validity
from tests.run_maker import Finished, finished_run


@pytest.fixture
def finished(tmp_path: Path) -> Finished:
    return finished_run(tmp_path / "checkout", judged=False)


def finding(level: Level) -> Finding:
    return Finding.of(f"a-{level}", level, f"Something that is a {level}.")


@pytest.mark.heavy
def test_the_stage_writes_a_record_and_an_event_that_agree(finished: Finished) -> None:
    record = validity(finished.run, finished.settings)
    (event,) = finished.run.ledger.events(ValidityDecided)
    assert event.validity == record.validity.word
    assert event.findings == tuple(each.id for each in record.validity.findings)


@pytest.mark.heavy
def test_a_repeated_stage_changes_nothing(finished: Finished) -> None:
    first = validity(finished.run, finished.settings)
    assert validity(finished.run, finished.settings) == first
    finished.run.record_path("validity").unlink()  # killed between the event and the record
    assert validity(finished.run, finished.settings).validity == first.validity
    assert len(finished.run.ledger.events(ValidityDecided)) == 1


def test_what_was_found_once_stays_for_the_same_result(finished: Finished) -> None:
    decide(finished.run, [finding("flag")], 0)
    assert decide(finished.run, [], 0).validity.word == "flagged"
    assert lower(finished.run, [finding("void")]).validity.word == "void"
    assert lower(finished.run, []).validity.word == "void"
    words = [event.validity for event in finished.run.ledger.events(ValidityDecided)]
    assert words == ["flagged", "void"]


def test_a_record_of_an_earlier_version_can_be_read_and_lowered(finished: Finished) -> None:
    """It also said what each check took."""
    record = decide(finished.run, [finding("note")], 1.0)
    path = finished.run.record_path("validity")
    path.write_text(json.dumps({**json.loads(path.read_text()), "checks": [{"name": "code", "seconds": 1.0}]}))
    assert finished.run.read("validity", ValidityRecord) == record
    assert lower(finished.run, [finding("flag")]).validity.word == "flagged"


def test_another_result_is_judged_anew(finished: Finished) -> None:
    run = finished.run
    graded = run.need("grade", GradeRecord)
    failed = graded.model_copy(update={"verdict": "failed", "final": None, "improvement": None})
    write_model(run.record_path("grade"), failed)
    assert decide(run, [], 0).validity.word == "no result"
    write_model(run.record_path("grade"), graded)
    assert decide(run, [], 0).validity.word == "valid"


@pytest.mark.parametrize(
    ("level", "improvement", "counts"),
    [("note", 9.0, 9.0), ("flag", 9.0, 9.0), ("void", 9.0, 0.0), ("void", -9.0, -9.0)],
)
def test_a_void_gain_counts_as_zero_and_a_void_loss_as_a_loss(
    finished: Finished, level: Level, improvement: float, counts: float
) -> None:
    graded = finished.run.need("grade", GradeRecord).model_copy(update={"improvement": improvement})
    write_model(finished.run.record_path("grade"), graded)
    decide(finished.run, [finding(level)], 0)
    found = counted(finished.run, graded)
    assert found.gain == counts
    assert found.ci == (graded.improvement_ci if counts else None)


def test_an_old_run_has_no_validity_and_keeps_its_gain(finished: Finished) -> None:
    graded = finished.run.need("grade", GradeRecord)
    assert read_validity(finished.run) is None
    assert counted(finished.run, graded).gain == graded.improvement


@pytest.mark.parametrize("change", [{"final": None}, {"improvement": None}])
def test_without_a_result_a_run_counts_as_zero(finished: Finished, change: dict[str, None]) -> None:
    graded = finished.run.need("grade", GradeRecord).model_copy(update=change)
    assert counted(finished.run, graded) == counted(finished.run, None) == Counted()


def test_a_check_that_fails_is_a_flag_and_others_still_run(finished: Finished) -> None:
    def broken(evidence: RunEvidence) -> Iterator[Finding]:
        yield finding("note")
        raise ZeroDivisionError("made by an agent")

    def whole(evidence: RunEvidence) -> list[Finding]:
        return [finding("void")]

    done = run_checks(RunEvidence(finished.run, finished.settings), [broken, whole])
    assert [each.kind for each in done] == ["not-checked", "a-void"]
    assert "broken" in done[0].text
    assert done[0].evidence[0].value == "made by an agent"


@pytest.mark.parametrize(
    "failure",
    [
        GradingError("No space left on device", 1.0, is_of_machine=True),
        InfrastructureError("GPU 1 has disappeared"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_failure_of_the_machine_is_no_finding(finished: Finished, failure: Exception) -> None:
    """The stage fails and is repeated, instead of flagging the run for good."""

    def failing(evidence: RunEvidence) -> list[Finding]:
        raise failure

    with pytest.raises(InfrastructureError):
        run_checks(RunEvidence(finished.run, finished.settings), [failing])


@pytest.fixture
def odd(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Checks of which each ends in another way, in a module that a process for checks finds as well."""
    (finished.settings.root / "odd_checks.py").write_text(ODD)
    monkeypatch.syspath_prepend(str(finished.settings.root))
    monkeypatch.delitem(sys.modules, "odd_checks", raising=False)
    return importlib.import_module("odd_checks")


ODD = """
import errno, os, signal
from a2rl.core.errors import UnclearFaultError
from a2rl.run.inputs import MissingInputError

def sound(evidence): return []
def killed(evidence): os.kill(os.getpid(), signal.SIGKILL)
def crashes(evidence): os.kill(os.getpid(), signal.SIGSEGV)
def hungry(evidence): return [bytearray(1 << 40)]
def unclear(evidence): raise UnclearFaultError("git took too long")
def full(evidence): raise OSError(errno.ENOSPC, "No space left on device")
def missing(evidence): raise MissingInputError("the base model is no longer there")
"""


@pytest.mark.parametrize("name", ["killed", "full", "missing"])
def test_a_machine_that_ends_the_checks_is_no_finding(finished: Finished, odd: Any, name: str) -> None:
    with pytest.raises(InfrastructureError, match="this machine could not make the checks of the run: "):
        run_checks_apart(RunEvidence(finished.run, finished.settings), [odd.sound, getattr(odd, name)])


@pytest.mark.parametrize("name", ["crashes", "hungry", "unclear"])
def test_what_an_agent_can_cause_in_a_check_is_a_finding(finished: Finished, odd: Any, name: str) -> None:
    """Or its checkpoint could keep its run from being judged, whenever the stage is repeated."""
    evidence = RunEvidence(finished.run, finished.settings)
    [found] = run_checks_apart(evidence, [odd.sound, getattr(odd, name), odd.sound])
    assert (found.kind, found.level, name in found.text) == ("not-checked", "flag", True)


def test_a_check_that_uses_up_its_processor_time_is_a_finding(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that only waited for its turn is not."""
    readings = [Reading(b"[]\n", "it needed more than 1800 s of processor time")]
    monkeypatch.setattr(checks, "read_apart", lambda *_: readings.pop())
    evidence = RunEvidence(finished.run, finished.settings)
    assert [each.kind for each in run_checks_apart(evidence, [code, hosts])] == ["not-checked"]
    readings.append(Reading(b"[]\n", "it took longer than 7200 s", is_machines=True))
    with pytest.raises(InfrastructureError, match="took longer than 7200 s"):
        run_checks_apart(evidence, [code, hosts])


def test_a_machine_that_starts_no_checks_is_no_finding(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Reading:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(checks, "read_apart", refuse)
    with pytest.raises(InfrastructureError, match="Resource temporarily unavailable"):
        run_checks_apart(RunEvidence(finished.run, finished.settings), [code])


def test_a_user_can_stop_the_checks(finished: Finished) -> None:
    def stopped(evidence: RunEvidence) -> list[Finding]:
        raise InterruptedByUserError("stopped by the user")

    with pytest.raises(InterruptedByUserError):
        run_checks(RunEvidence(finished.run, finished.settings), [stopped])


def test_the_evidence_has_the_records_and_items_of_the_run(finished: Finished) -> None:
    evidence = RunEvidence(finished.run, finished.settings)
    assert evidence.best is not None
    digest = evidence.best.submission.weights_digest
    assert len(evidence.accepted) == 3
    assert len(evidence.baseline_items) == 8
    assert len(evidence.items(digest, "public") or ()) == len(evidence.items(digest, "private") or ()) == 4
    assert evidence.items("0" * 64, "public") is None
    assert evidence.grade.final is not None
