"""Checks of how a run went: confined as it was asked to be, no process left, and a grade for whatever was accepted."""

from collections.abc import Iterator

from a2rl.run.events import AgentConfined, Graded, ProcessesSurvived, SubmissionAccepted
from a2rl.run.records import ExecuteRecord
from a2rl.validity.evidence import RunEvidence
from a2rl.validity.finding import Evidence, Finding


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


def ungraded(evidence: RunEvidence) -> Iterator[Finding]:
    """Voids a finished run that accepted a submission and has no grade for it, not even a failed one."""
    if evidence.grade.failed_stage is not None or evidence.run.read("execute", ExecuteRecord) is None:
        return
    graded = {entry.event.weights_digest for entry in evidence.entries if isinstance(entry.event, Graded)}
    for entry in evidence.entries:
        event = entry.event
        if isinstance(event, SubmissionAccepted) and event.weights_digest not in graded:
            place = Evidence(what="the submission", seq=entry.seq, digest=event.weights_digest)
            text = f"Submission {event.submission_id} was accepted, but the ledger has no grade for it."
            yield Finding.of("accepted-without-a-grade", "void", text, place)
