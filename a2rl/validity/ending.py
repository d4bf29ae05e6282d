"""Checks of how a run went: confined as it was asked to be, ended by its own doing with no process left, a grade for
whatever was accepted, and a result that was trained at all."""

from collections.abc import Iterator

from a2rl.run.events import AgentConfined, AgentEnded, Graded, ProcessesSurvived, SubmissionAccepted
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
    if evidence.grade.failed_stage is not None or evidence.run.read("execute", ExecuteRecord) is None:
        return
    graded = {entry.event.weights_digest for entry in evidence.entries if isinstance(entry.event, Graded)}
    for entry in evidence.entries:
        event = entry.event
        if isinstance(event, SubmissionAccepted) and event.weights_digest not in graded:
            place = Evidence(what="the submission", seq=entry.seq, digest=event.weights_digest)
            text = f"Submission {event.submission_id} was accepted, but the ledger has no grade for it."
            yield Finding.of("accepted-without-a-grade", "void", text, place)
