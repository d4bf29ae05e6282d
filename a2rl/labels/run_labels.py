"""Labels a run from what it has recorded: what its programs noted while they trained, code states, processes, logs and
the digests of weights.

What was noted comes first. The code is read alone where nothing was: for programs that do not run under a Python that
loads our tracer.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from a2rl.agent_systems.transcripts.atif import Trajectory
from a2rl.core.errors import A2rlError
from a2rl.core.files import read_jsonl
from a2rl.labels.code_walk import TooLargeError, Walk
from a2rl.labels.commands import code_in_steps, started
from a2rl.labels.failures import failures_of
from a2rl.labels.logs import signs_in
from a2rl.labels.phases import Phase, chain_of, traced_phase
from a2rl.labels.program import Program
from a2rl.labels.records import LabelsRecord, ProgramRun, SubmissionRoute
from a2rl.labels.routes import UNKNOWN, Chain, Evidence, Route, RouteLabel, training_type
from a2rl.labels.traces import Work, read_trace
from a2rl.recording.code_reading import code_at, states
from a2rl.run.budget import BudgetClock
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
RECORDING_S = 15.0
"""The state of the code is recorded at most about so much later."""
MAX_READING_S = 8.0
"""Processor time after which no further code is read."""
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
    return _Labels(run).record(began)


class _Labels:
    """The labels of one run."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._stop_s = time.process_time() + MAX_READING_S
        self._signs = signs_in(run.agent_log)
        self._entries = run.ledger.entries()
        self._clock = BudgetClock(self._entries)
        self._states = states(run.code)
        self._processes = processes_of(run)
        self._trace = read_trace(run.training_log)
        self._programs: dict[str, Program] = {}
        self._code: dict[str, list[Phase]] = {}
        self._traced_phases: dict[int, Phase | None] = {}
        """By the identity of what was traced: several submissions have the same phases behind them."""

    def record(self, began: float) -> LabelsRecord:
        """Returns all labels.

        Args:
            began: When the work on them began, on the monotonic clock.
        """
        run, signs = self._run, self._signs
        graded, executed = run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
        counts = graded.submission_id if graded else None
        routes = tuple(
            SubmissionRoute(submission=each.submission_id, chain=self._of_submission(each, at))
            for place, (each, at) in enumerate(self._accepted())
            if place < MAX_SUBMISSIONS or each.submission_id == counts
        )
        chain = next((route.chain for route in routes if route.submission == counts), None) or self._last()
        return LabelsRecord(
            seconds=time.monotonic() - began,
            chain=chain,
            training_type=training_type(chain),
            submissions=routes,
            programs=tuple(self._traced_programs()) or tuple(self._read_programs()),
            failures=tuple(failures_of(graded, executed, chain, signs)) if graded else (),
        )

    def _accepted(self) -> Iterator[tuple[SubmissionAccepted, float]]:
        """Yields the submissions with their time, in seconds since 1970."""
        for entry in self._entries:
            if isinstance(entry.event, SubmissionAccepted):
                yield entry.event, entry.at

    def _of_submission(self, submission: SubmissionAccepted, at: float) -> Chain:
        """Returns the route to a submission: as it was traced, or from the code and the processes until then."""
        if self._run.need("setup", SetupRecord).is_base_model(submission.weights_digest):
            what = "the weights are those of the base model"
            evidence = Evidence(source="weights", what=what, at_s=submission.elapsed_s)
            return (RouteLabel(route="copy", confidence=1.0, evidence=(evidence,)),)
        chain = self._traced(self._trace.before(submission.model_path, at))
        if chain is None and submission.code_revision is not None:
            chain = self._read(submission.code_revision, submission.elapsed_s)
        # The weights show that something was trained.
        return tuple(UNKNOWN if label.route == "copy" else self._supported(label) for label in chain or (UNKNOWN,))

    def _last(self) -> Chain:
        """Returns the route of a run without a submission that counts."""
        chain = self._traced(self._trace.works)
        if chain is None and self._states:
            chain = self._read(self._states[-1].commit, float("inf"))
        return tuple(map(self._supported, chain)) if chain is not None else _of_transcript(self._run)

    def _traced(self, works: Iterable[Work]) -> Chain | None:
        """Returns the route that was traced; None if nothing was, or nothing that is known."""
        chain = chain_of(phase for work in works if (phase := self._phase(work)) is not None)
        return None if chain[0].route == "unknown" else chain

    def _phase(self, work: Work) -> Phase | None:
        if id(work) not in self._traced_phases:
            commit = self._commit_at(work.began)
            file = self._program(commit).file(work.place.file) if commit and work.place.file else None
            at_s = self._clock.elapsed_s(work.began)
            self._traced_phases[id(work)] = traced_phase(work, self._phases_at(commit), file or "", commit, at_s)
        return self._traced_phases[id(work)]

    def _commit_at(self, at: float) -> str:
        """Returns the state of the code at a time; it is recorded a few seconds after it was written."""
        past = [state.commit for state in self._states if state.at <= at + RECORDING_S]
        return past[-1] if past else self._states[0].commit if self._states else ""

    def _program(self, commit: str) -> Program:
        if commit not in self._programs:
            # What is not read in this time is not read: the process that does it is limited, too.
            files = code_at(self._run.code, commit) if commit and time.process_time() < self._stop_s else {}
            self._programs[commit] = Program(files)
        return self._programs[commit]

    def _phases_at(self, commit: str) -> list[Phase]:
        """Returns all phases in a state of the code."""
        if commit not in self._code:
            self._code[commit] = phases_in(self._program(commit), None, commit)
        return self._code[commit]

    def _read(self, commit: str, until_s: float) -> Chain:
        """Returns the route that a state of the code shows, with the processes that ran until then."""
        program = self._program(commit)
        ran = [each.words for each in self._processes if each.started_s <= until_s and _is_own(each.words, program)]
        chain = chain_of(phases_in(program, ran, commit))
        if ran and all(label.route in {"unknown", "copy"} for label in chain):
            return chain_of(phases_in(program, (), commit))  # a process too short to be recorded may have trained
        return chain

    def _supported(self, label: RouteLabel) -> RouteLabel:
        """Adds the line of the log that shows the same method."""
        line = self._signs.methods.get("GRPO" if label.route == "online RL" else label.route)
        if line is None:
            return label
        evidence = Evidence(source="log", what=line.text[:300], file="logs/agent.log", line=line.number)
        confidence = min(0.99, label.confidence + CORROBORATED)
        return label.model_copy(update={"confidence": round(confidence, 2), "evidence": (*label.evidence, evidence)})

    def _traced_programs(self) -> Iterator[ProgramRun]:
        """Yields the times in which programs trained or generated, as they were traced."""
        for work in self._trace.works:
            phase = self._phase(work)
            activity = ACTIVITIES.get(phase.route) if phase else "rollout" if work.generations else None
            start_s, end_s = self._clock.elapsed_s(work.began), self._clock.elapsed_s(work.ended)
            if activity and start_s is not None:
                yield ProgramRun(activity=activity, start_s=start_s, end_s=end_s)

    def _read_programs(self) -> Iterator[ProgramRun]:
        """Yields the times of the programs that train or sample, by what the last state of their code says."""
        known = dict[tuple[str, ...], set[str]]()
        program = self._program(self._states[-1].commit if self._states else "")
        for words, start_s, end_s in self._processes:
            if words not in known and len(known) < MAX_COMMANDS and time.process_time() < self._stop_s:
                phases = phases_in(program, [words])
                known[words] = {ACTIVITIES[each.route] for each in phases if each.route in ACTIVITIES}
            if kinds := known.get(words):
                activity = next(iter(kinds)) if len(kinds) == 1 else "training"
                yield ProgramRun.model_validate({"activity": activity, "start_s": start_s, "end_s": end_s})


def _of_transcript(run: RunDir) -> Chain:
    """Returns the route in the agent's transcript, for agents that left no code in the folder for it."""
    try:
        steps = Trajectory.model_validate_json(run.trajectory.read_bytes()).steps
    except (OSError, ValueError):
        return (UNKNOWN,)
    files, commands = code_in_steps(steps)
    return classify(files, commands)


def processes_of(run: RunDir) -> list[Ran]:
    """Returns the recorded processes of the agent in the order in which they started."""
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


def _is_own(words: Sequence[str], program: Program) -> bool:
    """Says whether a command line runs code of the agent, or a tool that trains."""
    what = started(words, program.files)
    return what.route is not None or bool(what.script and program.file(what.script))


def classify(files: Mapping[str, str], commands: Sequence[Sequence[str]] = (), commit: str = "") -> Chain:
    """Returns the route that the code of a program shows, without running it.

    Args:
        files: Its files: text by path.
        commands: The command lines with which it was started, if they are known.
        commit: The commit of the files, for the evidence.
    """
    return chain_of(phases_in(Program(files), commands, commit))


def phases_in(program: Program, commands: Sequence[Sequence[str]] | None = (), commit: str = "") -> list[Phase]:
    """Returns the phases that the code of a program shows; none if there is too much of it.

    Args:
        program: Its files.
        commands: The command lines with which it was started; empty if they are not known. None: all that is in the
            files, whether or not something seems to run it.
        commit: The commit of the files, for the evidence.
    """
    try:
        walk = Walk(program)
        if commands is None:
            walk.run_all()
        else:
            walk.run(commands)
    except (TooLargeError, RecursionError, MemoryError):
        return []
    of_commit = {"commit": commit}
    return [each._replace(evidence=each.evidence.model_copy(update=of_commit)) for each in walk.result]
