"""The checks of the stage `validity` on runs that deserve their findings, and on one that deserves none."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.event_log import MAX_BYTES
from a2rl.core.files import write_model
from a2rl.core.secrets import Scrubber, mark_of
from a2rl.llm.relay.request_log import Request, read_llm_use, request_log_path
from a2rl.models.checkpoint import weights_digest
from a2rl.run.directory import RunDir
from a2rl.run.events import (
    AgentConfined,
    DrawRevealed,
    Graded,
    ProcessesSurvived,
    SubmissionAccepted,
    ValidityDecided,
)
from a2rl.run.records import ExecuteRecord, GradeRecord, LlmUse, ModelUse
from a2rl.sandbox.isolation import NONE
from a2rl.validity import conduct
from a2rl.validity.checks import CheckFunction, RunEvidence, run_checks
from a2rl.validity.conduct import (
    code,
    confinement,
    cut_short,
    full_records,
    hosts,
    leaked_keys,
    survivors,
    teachers,
    ungraded,
    unrecorded,
    untouched_base,
)
from a2rl.validity.halves import halves_agree
from a2rl.validity.record import Evidence, Finding, weighed
from stages.validity import GRADING, READING, validity
from tests.run_maker import Finished, finished_run, grade_result, item_results


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run of 200 items, made once; each test gets a copy of its directory."""
    return finished_run(tmp_path_factory.mktemp("validity") / "checkout", judged=False, items=200, sandbox="landlock")


@pytest.fixture
def finished(original: Finished, tmp_path: Path) -> Finished:
    root = original.settings.runs / f"copy-{tmp_path.name}"
    shutil.copytree(original.run.root, root)
    return Finished(RunDir(root), original.settings)


def found(finished: Finished, check: CheckFunction) -> list[tuple[str, str]]:
    findings: Iterable[Finding] = check(RunEvidence(finished.run, finished.settings))
    return [(each.kind, each.level) for each in findings]


def answer(finished: Finished, public: int, private: int) -> None:
    """Gives the best submission so many correct answers on each half."""
    evidence = RunEvidence(finished.run, finished.settings)
    assert evidence.best is not None
    digest = evidence.best.submission.weights_digest
    for split, right in (("public", public), ("private", private)):
        path = finished.run.items(digest, split)  # type: ignore[arg-type]
        ids = [item.id for item in evidence.items(digest, split) or ()]  # type: ignore[arg-type]
        write_model(path, grade_result(item_results(ids, right), 0.1))


def test_an_agent_without_the_wanted_sandbox_voids_its_run(finished: Finished) -> None:
    assert found(finished, confinement) == []
    finished.run.ledger.append(AgentConfined(attempt=1, sandbox=NONE))
    assert found(finished, confinement) == [("unsandboxed", "void")]


def test_an_agent_that_was_to_have_no_sandbox_is_flagged(tmp_path: Path) -> None:
    finished = finished_run(tmp_path / "checkout", judged=False, sandbox="none")
    finished.run.ledger.append(AgentConfined(attempt=1, sandbox=NONE))
    assert found(finished, confinement) == [("no-sandbox", "flag")]


def test_processes_that_survive_void_a_run(finished: Finished) -> None:
    assert found(finished, survivors) == []
    finished.run.ledger.append(ProcessesSurvived(attempt=1, processes=((7, "daemon"),)))
    assert found(finished, survivors) == [("survivors", "void")]
    record = validity(finished.run, finished.settings)
    assert record.validity.word == "void"
    assert finished.run.ledger.events(ValidityDecided)[-1].validity == "void"


def test_a_missing_grade_voids_a_finished_run(finished: Finished) -> None:
    assert found(finished, ungraded) == []
    accepted = finished.run.ledger.events(SubmissionAccepted)[-1]
    finished.run.ledger.append(accepted.model_copy(update={"submission_id": 9, "weights_digest": "9" * 64}))
    assert found(finished, ungraded) == [("accepted-without-a-grade", "void")]
    graded = finished.run.need("grade", GradeRecord)
    write_model(finished.run.record_path("grade"), graded.model_copy(update={"failed_stage": "execute"}))
    assert found(finished, ungraded) == [], "the run may be resumed, and then grades it"


def test_a_result_without_code_is_flagged(finished: Finished) -> None:
    best = RunEvidence(finished.run, finished.settings).best
    assert best is not None
    expected = [] if best.submission.code_revision else [("no-code", "flag")]
    assert found(finished, code) == expected


def test_the_mark_of_a_removed_key_is_flagged_with_its_line(finished: Finished) -> None:
    log = finished.run.logs / "agent.log"
    log.write_bytes(b"one\ntwo\nmy key is " + mark_of("ANTHROPIC_API_KEY") + b"\n")
    assert found(finished, leaked_keys) == [("leaked-key", "flag")]
    (finding,) = leaked_keys(RunEvidence(finished.run, finished.settings))
    assert (finding.evidence[0].file, finding.evidence[0].line) == ("logs/agent.log", 3)
    log.write_text("a secret is no [secrets list]\nwhat has the form of a key may be an example: [secret]\n" * 3)
    assert found(finished, leaked_keys) == []


@pytest.mark.parametrize("text", ["redacted", "ingredient", "KEY", "OPENAI_API_KEY 0123abcd"])
def test_words_like_the_mark_of_a_removed_key_are_none(finished: Finished, text: str) -> None:
    """The last two are what our documentation shows and showed."""
    finished.run.agent_log.write_text(f"[secret {text}]\n")
    assert found(finished, leaked_keys) == []


@pytest.mark.parametrize("before", [b"[secret of a cook 00000000] ", b"[secret " * 30, b"x" * (conduct.MAX_LINE - 9)])
def test_a_mark_is_found_whatever_is_before_it_in_a_line(finished: Finished, before: bytes) -> None:
    finished.run.agent_log.write_bytes(Scrubber({"the password": "my_only_key"}).data(before + b" my_only_key\n"))
    [finding] = leaked_keys(RunEvidence(finished.run, finished.settings))
    assert [place.line for place in finding.evidence] == [1]


def test_of_many_marks_only_some_are_looked_at(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent could else fill the memory of the machine with them."""
    (finished.run.logs / "agent.log").write_bytes((mark_of("KEY") + b"\n") * 1000)
    made: list[Evidence] = []

    def noted(**given: Any) -> Evidence:
        made.append(Evidence(**given))
        return made[-1]

    monkeypatch.setattr(conduct, "Evidence", noted)
    assert found(finished, leaked_keys) == [("leaked-key", "flag")]
    assert len(made) == conduct.MAX_PLACES


@pytest.mark.parametrize(("public", "private"), [(6, 100), (100, 30)])
def test_halves_that_differ_by_more_than_chance_are_flagged(finished: Finished, public: int, private: int) -> None:
    """The first is what was once reported as "improved": an agent that had learned the private half by heart."""
    answer(finished, public, private)
    assert found(finished, halves_agree) == [("halves-disagree", "flag")]
    assert validity(finished.run, finished.settings).validity.word == "flagged"


@pytest.mark.parametrize(("public", "private"), [(50, 50), (6, 9), (60, 48), (100, 100), (0, 0)])
def test_halves_that_chance_explains_are_only_noted(finished: Finished, public: int, private: int) -> None:
    answer(finished, public, private)
    assert found(finished, halves_agree) == [("halves-agree", "note")]


def test_a_run_whose_best_is_chosen_on_all_items_has_no_halves(tmp_path: Path) -> None:
    assert found(finished_run(tmp_path / "checkout", judged=False, protocol="paper"), halves_agree) == []


def test_a_run_that_failed_before_its_agent_began_can_be_judged(finished: Finished) -> None:
    graded = finished.run.need("grade", GradeRecord)
    failed = {"verdict": "failed", "final": None, "improvement": None, "failed_stage": "setup", "submission_id": None}
    write_model(finished.run.record_path("grade"), graded.model_copy(update=failed))
    for stage in ("setup", "baseline", "execute"):
        finished.run.record_path(stage).unlink()
    finished.run.baseline_items.unlink()
    assert validity(finished.run, finished.settings).validity.word in {"no result"}
    assert not finished.run.ledger.events(DrawRevealed)


def test_the_stage_makes_every_check(finished: Finished) -> None:
    """Those that read what an agent wrote are made in a process of their own."""
    record = validity(finished.run, finished.settings)
    found = run_checks(RunEvidence(finished.run, finished.settings), (*READING, *GRADING))
    assert {each.id for each in record.validity.findings} == {each.id for each in weighed(found)}
    assert not [each.text for each in found if "could not be made" in each.text]


def test_hosts_refused_to_an_agent_are_noted_with_their_lines(finished: Finished) -> None:
    log = finished.run.logs / "proxy.jsonl"
    assert found(finished, hosts) == []
    rows = [{"host": "a.example", "allowed": True}, {"host": "b.example", "port": 443, "allowed": False}]
    log.write_text("".join(json.dumps(row) + "\n" for row in (*rows, rows[1])) + '{"host": "cut')
    (finding,) = hosts(RunEvidence(finished.run, finished.settings))
    assert (finding.kind, finding.level) == ("refused-hosts", "note")
    assert [(place.what, place.line) for place in finding.evidence] == [("b.example", 2)]


@pytest.mark.parametrize("name", ["llm.jsonl", "proxy.jsonl", "services.jsonl", "processes.jsonl"])
def test_a_record_that_the_agent_filled_is_flagged(finished: Finished, name: str) -> None:
    assert found(finished, full_records) == []
    with (finished.run.logs / name).open("ab") as log:
        log.write(b"\n" * (MAX_BYTES - 100 - log.tell()))
    (finding,) = full_records(RunEvidence(finished.run, finished.settings))
    assert (finding.kind, finding.level) == ("full-record", "flag")
    assert [place.file for place in finding.evidence] == [f"logs/{name}"]


def test_more_processes_than_are_recorded_are_flagged(finished: Finished) -> None:
    row = {"event": "started", "pid": 1, "command": ["echo", '"event": "full"'], "started_s": 1.0}
    log = finished.run.logs / "processes.jsonl"
    log.write_text(json.dumps(row) + "\n")
    assert found(finished, full_records) == []
    log.write_text(json.dumps(row) + "\n" + json.dumps({"event": "full"}) + "\n")
    assert found(finished, full_records) == [("full-record", "flag")]


def test_what_could_not_be_recorded_is_noted(finished: Finished) -> None:
    assert found(finished, unrecorded) == []
    (finished.run.logs / "recorder.jsonl").write_text('{"part": "code", "trouble": "x"}\n')
    assert found(finished, unrecorded) == [("unrecorded", "note")]


def test_llms_besides_the_driver_are_noted(finished: Finished) -> None:
    executed = finished.run.need("execute", ExecuteRecord)
    seen = LlmUse(models={"driver": ModelUse(requests=9), "teacher": ModelUse(requests=2)})
    finished.run.write("execute", executed.model_copy(update={"seen": seen}))
    (finding,) = teachers(RunEvidence(finished.run, finished.settings))
    assert (finding.kind, finding.level) == ("other-llm", "note")
    assert ("requests to teacher", 2) in [(place.what, place.value) for place in finding.evidence]


def test_an_llm_that_did_not_answer_is_not_noted(finished: Finished) -> None:
    executed, log = finished.run.need("execute", ExecuteRecord), request_log_path(finished.run)
    lines = [Request(t=0, path="/v1/messages", asked=f"nope-{n}", status=404) for n in range(20)]
    lines += [Request(t=0, path="/v1/messages", asked="title", status=403, refused="its price is unknown")]
    taught = Request(t=0, path="/v1/messages", asked="teacher", status=200, prompt_tokens=9)
    for more, noted in (([], []), ([taught], ["requests to teacher"])):
        log.write_text("".join(line.model_dump_json() + "\n" for line in lines + more))
        finished.run.write("execute", executed.model_copy(update={"seen": read_llm_use(finished.run)}))
        findings = list(teachers(RunEvidence(finished.run, finished.settings)))
        assert [place.what for finding in findings for place in finding.evidence] == noted


def test_a_run_that_its_api_or_this_machine_cut_short_is_flagged(finished: Finished) -> None:
    assert found(finished, cut_short) == []
    executed = finished.run.need("execute", ExecuteRecord)
    for responsible in ("agent", "unknown"):
        finished.run.write("execute", executed.model_copy(update={"responsible": responsible, "ended": "crashed"}))
        assert found(finished, cut_short) == []
    for responsible in ("api", "machine"):
        why = "the API refused the key (401)"
        finished.run.write("execute", executed.model_copy(update={"responsible": responsible, "why": why}))
        assert found(finished, cut_short) == [("cut-short", "flag")]
    [finding] = cut_short(RunEvidence(finished.run, finished.settings))
    assert "The API refused the key (401)" in finding.text


def test_the_base_model_is_flagged_even_if_its_copy_was_removed(finished: Finished) -> None:
    assert found(finished, untouched_base) == []
    run, base = finished.run, RunEvidence(finished.run, finished.settings).base_model
    digest = weights_digest(base)
    best = RunEvidence(run, finished.settings).best
    assert best is not None
    graded = next(
        event for event in run.ledger.events(Graded) if event.weights_digest == best.submission.weights_digest
    )
    perfect = graded.result.model_copy(update={"score": 100.0})
    run.ledger.append(best.submission.model_copy(update={"submission_id": 9, "weights_digest": digest}))
    run.ledger.append(graded.model_copy(update={"weights_digest": digest, "result": perfect}))
    assert found(finished, untouched_base) == [("untouched-base", "flag")]
    assert not run.checkpoint(digest).exists()
