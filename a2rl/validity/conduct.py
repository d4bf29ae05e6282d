"""Checks of how a run went: confined as it was asked to be, ended by its own doing with no process left, a grade for
whatever was accepted, and a result that was trained at all. And of what its agent left behind: the code of its
submissions, keys in what it wrote, the LLMs and hosts that it asked for."""

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from a2rl.core.event_log import EventLog
from a2rl.core.files import read_jsonl
from a2rl.core.secrets import MAX_MARK, first_mark
from a2rl.recording.processes import FULL
from a2rl.run.events import AgentConfined, AgentEnded, Graded, ProcessesSurvived, SubmissionAccepted
from a2rl.run.ledger import events_of
from a2rl.run.rules import rules
from a2rl.sandbox.agent_log import MAX_BYTES as MAX_PRINTED
from a2rl.validity.checks import RunEvidence
from a2rl.validity.record import Evidence, Finding


def confinement(evidence: RunEvidence) -> Iterator[Finding]:
    """Voids a run whose agent ran without the sandbox that was asked for; flags one where none was asked for."""
    asked = evidence.run.spec.sandbox
    for entry in evidence.entries:
        if not isinstance(entry.event, AgentConfined) or entry.event.sandbox.confines:
            continue
        place = Evidence(what="what confined it", value=entry.event.sandbox.kind, seq=entry.seq)
        if asked == "none":
            text = "The agent ran without a sandbox, as it was asked for, so nothing kept it from the hidden data."
            yield Finding.of("no-sandbox", "flag", text, place)
        else:
            text = f"The agent ran without a sandbox, although {asked} was asked for."
            yield Finding.of("unsandboxed", "void", text, place)


def survivors(evidence: RunEvidence) -> Iterator[Finding]:
    """Voids a run of whose agent a process was left: it could still change things."""
    for entry in evidence.entries:
        if isinstance(entry.event, ProcessesSurvived):
            names = [f"{pid} {name}" for pid, name in entry.event.processes]
            text = f"{len(names)} of the agent's processes could not be ended with it."
            yield Finding.of(
                "survivors", "void", text, Evidence(what="processes", value=", ".join(names), seq=entry.seq)
            )


def cut_short(evidence: RunEvidence) -> Iterator[Finding]:
    """Flags a run whose agent was stopped by its LLM's API or by this machine: the result is no measure of it."""
    executed = evidence.execute
    if executed is None or executed.responsible not in {"api", "machine"}:
        return
    whose = "its LLM's API" if executed.responsible == "api" else "this machine"
    ends = [entry for entry in evidence.entries if isinstance(entry.event, AgentEnded)]
    place = Evidence(what=f"how it ended: {executed.ended}", value=executed.why, seq=ends[-1].seq if ends else None)
    text = f"The agent was stopped by {whose}, not by its own doing, so the result says little about it."
    yield Finding.of("cut-short", "flag", f"{text} {executed.why[:1].upper()}{executed.why[1:]}", place)


def untouched_base(evidence: RunEvidence) -> Iterator[Finding]:
    """Flags a result that is the base model itself, which the rules forbid to submit."""
    best, ready = evidence.best, evidence.setup
    if best is not None and ready is not None and ready.is_base_model(best.submission.weights_digest):
        place = Evidence(what="its weights are those of the base model", digest=best.submission.weights_digest)
        number = best.submission.submission_id
        text = f"The result is the untouched base model: submission {number} has its weights, bit for bit."
        yield Finding.of("untouched-base", "flag", text, place)


def ungraded(evidence: RunEvidence) -> Iterator[Finding]:
    """Voids a finished run that accepted a submission and has no grade for it, not even a failed one."""
    if evidence.grade.failed_stage is not None or evidence.execute is None:
        return
    graded = {event.weights_digest for event in events_of(evidence.entries, Graded)}
    for entry in evidence.entries:
        event = entry.event
        if isinstance(event, SubmissionAccepted) and event.weights_digest not in graded:
            place = Evidence(what="the submission", seq=entry.seq, digest=event.weights_digest)
            text = f"Submission {event.submission_id} was accepted, but the ledger has no grade for it."
            yield Finding.of("accepted-without-a-grade", "void", text, place)


RECORDS = ("llm.jsonl", "proxy.jsonl", "services.jsonl", "processes.jsonl", "output.jsonl", "telemetry.jsonl")
"""The logs that are written while an agent works, each up to a maximum size."""
MAX_PLACES = 20
MAX_LINE = 1 << 20
"""Bytes of a line that are looked at together."""
SHOWN = 10


def code(evidence: RunEvidence) -> Iterator[Finding]:
    """Flags a result whose submission came without any code of the agent's."""
    best = evidence.best
    if best is None or best.submission.code_revision is not None:
        return
    number = best.submission.submission_id
    places = [
        Evidence(what="the submission", seq=entry.seq, digest=entry.event.weights_digest)
        for entry in evidence.entries
        if isinstance(entry.event, SubmissionAccepted) and entry.event.submission_id == number
    ]
    text = f"No code was recorded for submission {number}, which is the result, so nobody can tell how it was made."
    yield Finding.of("no-code", "flag", text, *places)


def full_records(evidence: RunEvidence) -> Iterator[Finding]:
    """Flags a run whose agent filled a record, or hid what it did from it: what is missing there, no check can see."""
    run = evidence.run
    full = [path for name in RECORDS if EventLog(path := run.logs / name).is_full]
    full += [path for path in _kept(evidence) if path.is_file() and path.stat().st_size >= MAX_PRINTED]
    processes = run.logs / "processes.jsonl"
    # Without a sandbox, programs such as codex hide from ordinary users what they have open.
    is_confined = run.spec.sandbox != "none"
    if is_confined and processes.is_file() and any(row.get("event") == FULL for row in read_jsonl(processes)):
        full.append(processes)
    if full:
        places = [Evidence(what="a full record", file=str(path.relative_to(run.root))) for path in full]
        text = "The agent filled a record, or hid from it what its processes did, so not all of that is recorded there."
        yield Finding.of("full-record", "flag", text, *places)


def unrecorded(evidence: RunEvidence) -> Iterator[Finding]:
    """Notes that something could not be recorded: an honest agent may have too many files, but code may hide there."""
    log = evidence.run.logs / "recorder.jsonl"
    if log.is_file() and log.stat().st_size:
        place = Evidence(what="what could not be recorded, and why", file=str(log.relative_to(evidence.run.root)))
        yield Finding.of("unrecorded", "note", "Not all that the agent did could be recorded.", place)


def leaked_keys(evidence: RunEvidence) -> Iterator[Finding]:
    """Flags a run whose agent wrote a key; a2rl has removed it, and leaves a mark where it stood."""
    marks = chain.from_iterable(_marks(path, evidence.run.root) for path in _kept(evidence))
    if found := list(islice(marks, MAX_PLACES)):
        text = "The agent wrote one of this machine's API keys, which was removed: it should not have had it."
        yield Finding.of("leaked-key", "flag", text, *found)


def _kept(evidence: RunEvidence) -> Iterator[Path]:
    """Yields the files with what the agent printed and said."""
    run = evidence.run
    yield run.agent_log
    yield run.trajectory
    yield from sorted(run.logs.glob("transcript-*.jsonl"))


def _marks(path: Path, root: Path) -> Iterator[Evidence]:
    if not path.is_file():
        return
    name = str(path.relative_to(root))
    with path.open("rb") as file:
        number, before = 1, b""
        while part := file.readline(MAX_LINE):
            if (mark := first_mark(before + part)) is not None:
                yield Evidence(what="a removed key", value=mark.decode(), file=name, line=number)
            is_whole = part.endswith(b"\n")
            number, before = number + is_whole, b"" if is_whole else part[-MAX_MARK:]


def teachers(evidence: RunEvidence) -> Iterator[Finding]:
    """Notes LLMs that the agent used besides its driver and those that the rules allow."""
    executed, driver = evidence.execute, evidence.run.spec.driver
    used = executed.seen.other_models(driver) if executed and executed.seen else {}
    others = {name: use for name, use in used.items() if name not in rules().teachers.allowed}
    if others:
        places = [
            Evidence(what=f"requests to {name}", value=use.requests, file="logs/llm.jsonl")
            for name, use in list(others.items())[:SHOWN]
        ]
        text = f"The agent used {len(others)} LLM{'s' if len(others) > 1 else ''} besides its driver."
        yield Finding.of("other-llm", "note", text, *places)


def hosts(evidence: RunEvidence) -> Iterator[Finding]:
    """Notes hosts that the agent tried to reach and was refused."""
    refused: dict[str, int] = {}
    for line, host in _refused(evidence):
        refused.setdefault(host, line)
    if refused:
        places = [
            Evidence(what=host, file="logs/proxy.jsonl", line=line) for host, line in list(refused.items())[:SHOWN]
        ]
        text = f"The agent tried to reach {len(refused)} host{'s' if len(refused) > 1 else ''} that it may not reach."
        yield Finding.of("refused-hosts", "note", text, *places)


def _refused(evidence: RunEvidence) -> Iterator[tuple[int, str]]:
    path = evidence.run.logs / "proxy.jsonl"
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the last line of a process that was killed
            if isinstance(row, dict) and row.get("allowed") is False:
                yield number, str(row.get("host"))
