"""Labels a run from what it has recorded: code states, processes, logs and the digests of weights."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from a2rl.core.errors import A2rlError
from a2rl.core.files import read_jsonl
from a2rl.labels.classify import UNKNOWN, classify
from a2rl.labels.commands import started
from a2rl.labels.failures import failures_of
from a2rl.labels.logs import LogSigns, signs_in
from a2rl.labels.program import Program
from a2rl.labels.records import LabelsRecord, ProgramRun, SubmissionRoute
from a2rl.labels.routes import Chain, Evidence, Route, RouteLabel, training_type
from a2rl.labels.transcript_code import code_in_steps
from a2rl.recording.code_reading import code_at, states
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.records import ExecuteRecord, GradeRecord, SetupRecord

MAX_SUBMISSIONS = 60
"""The first ones of a run are labelled, and the one that counts."""
MAX_COMMANDS = 40
"""Distinct command lines whose activity is told."""
ACTIVITIES: dict[Route, Literal["SFT", "RL", "rollout"]] = {
    "SFT": "SFT", "DPO": "SFT", "GRPO": "RL", "PPO": "RL", "online RL": "RL", "rejection sampling": "rollout",
}  # fmt: skip
CORROBORATED = 0.03
"""What a matching line in the log adds to the confidence."""


class Ran(NamedTuple):
    """A process of the agent, as it was recorded."""

    words: tuple[str, ...]
    started_s: float
    """Seconds of the budget clock."""
    ended_s: float | None
    """None if it lasted until the agent was ended."""


def label_run(run: RunDir) -> LabelsRecord:
    """Computes the labels of a run whose agent has ended."""
    began = time.monotonic()
    signs = signs_in(run.agent_log)
    graded, executed = run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
    accepted = _chosen(run, graded)
    routes = tuple(
        SubmissionRoute(submission=each.submission_id, chain=_of_submission(run, each, signs)) for each in accepted
    )
    counts = graded.submission_id if graded else None
    chain = next((route.chain for route in routes if route.submission == counts), None) or _last_code(run, signs)
    return LabelsRecord(
        seconds=time.monotonic() - began,
        chain=chain,
        training_type=training_type(chain),
        submissions=routes,
        programs=tuple(_programs(run)),
        failures=tuple(failures_of(graded, executed, chain, signs)) if graded else (),
    )


def _chosen(run: RunDir, graded: GradeRecord | None) -> list[SubmissionAccepted]:
    accepted = run.ledger.events(SubmissionAccepted)
    counts = graded.submission_id if graded else None
    return [each for place, each in enumerate(accepted) if place < MAX_SUBMISSIONS or each.submission_id == counts]


def _of_submission(run: RunDir, submission: SubmissionAccepted, signs: LogSigns) -> Chain:
    """Returns the route to a submission, from the code at that time and the processes until then."""
    if run.need("setup", SetupRecord).is_base_model(submission.weights_digest):
        evidence = Evidence(source="weights", what="the weights are those of the base model", at_s=submission.elapsed_s)
        return (RouteLabel(route="copy", confidence=1.0, evidence=(evidence,)),)
    if submission.code_revision is None:
        return (UNKNOWN,)
    chain = _of_code(run, submission.code_revision, submission.elapsed_s)
    return _supported(_without_copy(chain), signs)


def _last_code(run: RunDir, signs: LogSigns) -> Chain:
    recorded = states(run.code)
    if not recorded:
        return _of_transcript(run)
    return _supported(_of_code(run, recorded[-1].commit, float("inf")), signs)


def _of_code(run: RunDir, commit: str, until_s: float) -> Chain:
    files = code_at(run.code, commit)
    ran = [each for each in processes_of(run) if each.started_s <= until_s and _is_own(each, files)]
    environ = {"TASK": run.spec.task}
    chain = classify(files, [each.words for each in ran], environ, commit)
    if ran and all(label.route in {"unknown", "copy"} for label in chain):
        chain = classify(files, (), environ, commit)  # a process too short to be recorded may have trained
    return chain


def _without_copy(chain: Chain) -> Chain:
    """Replaces `copy` where the weights show that something was trained."""
    return tuple(UNKNOWN if label.route == "copy" else label for label in chain)


def _of_transcript(run: RunDir) -> Chain:
    """Returns the route in the agent's transcript, for agents that left no code in the folder for it."""
    from a2rl.agents.transcripts.atif import Trajectory

    try:
        steps = Trajectory.model_validate_json(run.trajectory.read_bytes()).steps
    except (OSError, ValueError):
        return (UNKNOWN,)
    files, commands = code_in_steps(steps)
    return classify(files, commands, {"TASK": run.spec.task})


def _supported(chain: Chain, signs: LogSigns) -> Chain:
    """Adds the lines of the log that show the same methods."""
    return tuple(_with_log(label, signs) for label in chain)


def _with_log(label: RouteLabel, signs: LogSigns) -> RouteLabel:
    method = "GRPO" if label.route == "online RL" else label.route
    line = signs.methods.get(method)
    if line is None:
        return label
    evidence = Evidence(source="log", what=line.text[:300], file="logs/agent.log", line=line.number)
    confidence = min(0.99, label.confidence + CORROBORATED)
    return label.model_copy(update={"confidence": round(confidence, 2), "evidence": (*label.evidence, evidence)})


def _programs(run: RunDir) -> Iterator[ProgramRun]:
    """Yields the times of the programs that train or sample, by what the last state of their code says."""
    recorded, known = states(run.code), dict[tuple[str, ...], set[str]]()
    files = code_at(run.code, recorded[-1].commit) if recorded else {}
    for words, start_s, end_s in processes_of(run):
        if words not in known and len(known) < MAX_COMMANDS:
            chain = classify(files, [words], {"TASK": run.spec.task})
            known[words] = {ACTIVITIES[label.route] for label in chain if label.route in ACTIVITIES}
        if kinds := known.get(words):
            activity = next(iter(kinds)) if len(kinds) == 1 else "training"
            yield ProgramRun.model_validate({"activity": activity, "start_s": start_s, "end_s": end_s})


def processes_of(run: RunDir) -> list[Ran]:
    """Returns the recorded processes of the agent in the order in which they started; none in older runs."""
    return sorted(_read_processes(run), key=lambda ran: ran.started_s)


def _read_processes(run: RunDir) -> Iterator[Ran]:
    running: dict[object, Ran] = {}
    rows: Sequence[dict[str, Any]] = ()
    with suppress(OSError, ValueError, A2rlError):
        rows = read_jsonl(run.logs / "processes.jsonl")
    for row in rows:
        with suppress(KeyError, TypeError, ValueError):
            pid, is_start = row.get("pid"), row["event"] == "started"
            if pid in running and (is_start or "ended_s" in row):
                yield running.pop(pid)._replace(ended_s=float(row["started_s" if is_start else "ended_s"]))
            if is_start:
                ran = Ran(tuple(map(str, row["command"])), float(row["started_s"]), None)
                if pid is None:
                    yield ran
                else:
                    running[pid] = ran
    yield from running.values()


def _is_own(ran: Ran, files: dict[str, str]) -> bool:
    """Says whether a process runs code of the agent, or a tool that trains."""
    what = started(ran.words, files)
    return what.route is not None or bool(what.script and Program(files).file(what.script))
