"""Labels a run: by which route its programs trained, as they noted it themselves, and why it did not improve the model.

What a program did, one part after the other, makes its phases, and the phases of all programs make the chain of a run.

`python -P -m a2rl.labels.run_labels RUN` prints the labels as JSON. It is a separate process because it parses what the
agent wrote, which can take any amount of memory or crash a parser: `write_labels` in records.py limits it.
"""

import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

from a2rl.labels.code_walk import Program, Spot, spots_in
from a2rl.labels.records import (
    POLICY_GRADIENTS,
    UNKNOWN,
    Chain,
    Evidence,
    Failure,
    LabelsRecord,
    ProgramRun,
    Route,
    RouteLabel,
    SubmissionRoute,
    training_type,
)
from a2rl.labels.rules import REWARD_MODELS, Sign, route_of_trainer, rule_of, trainer_route
from a2rl.labels.traces import LOADED, Work, read_trace
from a2rl.recording.code_reading import code_at, states
from a2rl.run.budget import BudgetClock
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.records import ExecuteRecord, GradeRecord, SetupRecord

MAX_EVIDENCE = 5
NO_MERGE = ("merge_and_unload", LOADED)
TRACED = 0.95
"""The confidence if a library's trainer was traced."""
READ_ALONE = 0.4
"""The confidence if nothing was traced and the code has something that trains: nobody saw that it ran."""


class Phase(NamedTuple):
    """A part of a program's work."""

    route: Route
    confidence: float
    evidence: Evidence


def traced_phase(work: Work, code: Sequence[Spot], file: str, commit: str, at_s: float | None) -> Phase | None:
    """Returns what a program did, from what it noted itself and the signs in its code; None if nothing was trained.

    Args:
        code: The places in the code where it trains.
        at_s: When it began, in seconds of the budget clock.
    """
    place = Evidence(source="trace", what="", commit=commit if file else "", file=file, line=work.place.line, at_s=at_s)

    def phase(route: Route, confidence: float, why: str) -> Phase:
        return Phase(route, confidence, place.model_copy(update={"what": why}))

    here = [each for each in code if each.file == file]
    nearest = min(here, key=lambda each: abs(each.line - work.place.line), default=None)
    signs = set(nearest.signs if nearest else ()) - {Sign.GENERATES}
    if work.turns or work.generated_before:
        signs.add(Sign.GENERATES)
    if work.merge:
        # An adapter that is merged into its own model is no merge of checkpoints, and neither is a choice among them.
        is_merge = work.merge not in NO_MERGE or (work.merge == LOADED and any(each.kind == "merge" for each in code))
        return phase("merge", TRACED if work.merge != LOADED else 0.85, work.merge) if is_merge else None
    if not work.steps or any(name.rpartition(".")[2] in REWARD_MODELS for name in work.classes):
        return None
    named = [(route, name) for name in work.classes if (route := trainer_route(name)) is not None]
    if named and not (work.has_own_loss and nearest and nearest.kind == "loop"):
        route, name = named[0]
        # A single step may stand for an unknown number: verl's trainers do not say how many they took.
        why = name.rpartition(".")[2] + (f", {work.steps} steps" if work.steps > 1 else "")
        return phase(route_of_trainer(route, signs, work.settings), TRACED, why)
    rule = rule_of(signs)
    return phase(rule.route, rule.confidence, f"{rule.why}: {work.steps} steps, {work.generations} generations")


def read_phases(code: Iterable[Spot], commit: str) -> Iterator[Phase]:
    """Yields what a program seems to do, by its code alone."""
    for spot in code:
        route, why = trainer_route(spot.trainer), spot.trainer.rpartition(".")[2]
        if route is not None:
            route = route_of_trainer(route, spot.signs, ())
        elif spot.kind == "merge":
            route, why = "merge", "weights are combined"
        else:
            route, why = rule_of(spot.signs).route, rule_of(spot.signs).why
        evidence = Evidence(source="code", what=why, commit=commit, file=spot.file, line=spot.line)
        yield Phase(route, READ_ALONE, evidence)


def chain_of(phases: Iterable[Phase]) -> Chain:
    """Returns the chain of phases that are in order: neighbours of one route are one label.

    Phases of an unknown route do not count beside known ones.
    """
    found = list(phases)
    known = [each for each in found if each.route != "unknown"] or found
    return tuple(_label(list(group)) for _, group in groupby(known, lambda each: each.route)) or (UNKNOWN,)


def _label(group: list[Phase]) -> RouteLabel:
    evidence = tuple(phase.evidence for phase in group[:MAX_EVIDENCE])
    return RouteLabel(route=group[0].route, confidence=max(phase.confidence for phase in group), evidence=evidence)


MAX_SUBMISSIONS = 60
"""The first ones of a run are labelled, and the one that counts."""
ACTIVITIES: dict[Route, Literal["SFT", "RL", "rollout"]] = {
    "SFT": "SFT", "DPO": "SFT", "GRPO": "RL", "PPO": "RL", "online RL": "RL", "rejection sampling": "rollout",
}  # fmt: skip
RECORDING_S = 15.0
"""The state of the code is recorded at most about so much later."""
MAX_READING_S = 8.0
"""Processor time after which no further code is read."""


def label_run(run: RunDir) -> LabelsRecord:
    """Computes the labels of a run whose agent has ended."""
    return _Labels(run).record()


class _Labels:
    """The labels of one run."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._began = run, time.monotonic()
        self._stop_s = time.process_time() + MAX_READING_S
        self._entries = run.ledger.entries()
        self._clock = BudgetClock(self._entries)
        self._states = states(run.code)
        self._trace = read_trace(run.training_log)
        self._code: dict[str, tuple[Program, list[Spot]]] = {}
        self._phases: dict[int, Phase | None] = {}
        """By the identity of what was traced: several submissions have the same phases behind them."""

    def record(self) -> LabelsRecord:
        """Returns all labels."""
        run = self._run
        graded, executed = run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
        counts = graded.submission_id if graded else None
        routes = tuple(
            SubmissionRoute(submission=each.submission_id, chain=self._of_submission(each, at))
            for place, (each, at) in enumerate(self._accepted())
            if place < MAX_SUBMISSIONS or each.submission_id == counts
        )
        chain = next((route.chain for route in routes if route.submission == counts), ())
        chain = chain or self._of(self._trace.works, time.time())
        return LabelsRecord(
            seconds=time.monotonic() - self._began,
            chain=chain,
            training_type=training_type(chain),
            submissions=routes,
            programs=tuple(self._programs()),
            failures=tuple(failures_of(graded, executed, chain, signs_in(run.agent_log))) if graded else (),
        )

    def _accepted(self) -> Iterator[tuple[SubmissionAccepted, float]]:
        """Yields the submissions with their time, in seconds since 1970."""
        for entry in self._entries:
            if isinstance(entry.event, SubmissionAccepted):
                yield entry.event, entry.at

    def _of_submission(self, submission: SubmissionAccepted, at: float) -> Chain:
        """Returns the route to a submission, as it was traced."""
        if self._run.need("setup", SetupRecord).is_base_model(submission.weights_digest):
            what = "the weights are those of the base model"
            evidence = Evidence(source="weights", what=what, at_s=submission.elapsed_s)
            return (RouteLabel(route="copy", confidence=1.0, evidence=(evidence,)),)
        return self._of(self._trace.before(submission.model_path, at), at)

    def _of(self, works: Iterable[Work], at: float) -> Chain:
        """Returns the route that was traced, or else that of the code at a time."""
        phases = [phase for work in works if (phase := self._phase(work)) is not None]
        if not phases:
            commit = self._commit_at(at)
            phases = [*read_phases(self._code_at(commit)[1], commit)]
        return chain_of(phases)

    def _phase(self, work: Work) -> Phase | None:
        if id(work) not in self._phases:
            commit = self._commit_at(work.began)
            program, spots = self._code_at(commit)
            at_s = self._clock.elapsed_s(work.began)
            self._phases[id(work)] = traced_phase(work, spots, program.file(work.place.file), commit, at_s)
        return self._phases[id(work)]

    def _commit_at(self, at: float) -> str:
        """Returns the state of the code at a time; it is recorded a few seconds after it was written."""
        past = [state.commit for state in self._states if state.at <= at + RECORDING_S]
        return past[-1] if past else self._states[0].commit if self._states else ""

    def _code_at(self, commit: str) -> tuple[Program, list[Spot]]:
        """Returns a state of the code, and where it trains."""
        if commit not in self._code:
            # What is not read in this time is not read: the process that does it is limited, too.
            files = code_at(self._run.code, commit) if commit and time.process_time() < self._stop_s else {}
            program = Program(files)
            self._code[commit] = program, spots_in(program)
        return self._code[commit]

    def _programs(self) -> Iterator[ProgramRun]:
        """Yields the times in which programs trained or generated."""
        for work in self._trace.works:
            phase = self._phase(work)
            activity = ACTIVITIES.get(phase.route) if phase else "rollout" if work.generations else None
            start_s, end_s = self._clock.elapsed_s(work.began), self._clock.elapsed_s(work.ended)
            if activity and start_s is not None:
                yield ProgramRun(activity=activity, start_s=start_s, end_s=end_s)


MAX_BYTES = 8 << 20
"""The end of a longer log is read."""
MAX_LINE, BLOCK = 2000, 1 << 20
NAMED = r"\b(?!(?:best|max|min)_)(?:[a-z0-9]{1,20}_){0,3}"
"""Before the name of a figure: `train_loss` is a loss. The best one of a program that has just begun is infinite."""
DIVERGED = re.compile(
    NAMED + r"(?:loss(?:es)?|grad_norm|rewards?)['\"]?\s*(?:[:=]\s*)?['\"]?(?:nan|inf|-inf)\b", re.IGNORECASE
)
ERROR = re.compile(
    r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): ?(.*)|^(Killed|Segmentation fault)|out of memory", re.IGNORECASE
)
REWARD = re.compile(
    NAMED + r"rewards?['\"]?(?:\s*[:=])?\s{0,9}['\"]?(-?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)(?![\w.]|\s*/)",
    re.IGNORECASE,
)


class Line(NamedTuple):
    """A line of a log."""

    number: int
    text: str


class LogSigns(NamedTuple):
    """How training failed by an agent's log. An agent can print anything, so that this counts little alone."""

    errors: list[Line]
    """Those among the last lines: of an earlier one, the agent knew."""
    diverged: Line | None
    flat_reward: Line | None
    """The last reward that was logged, if all of at least five were zero."""


def signs_in(path: Path) -> LogSigns:
    """Reads a log file; a missing one shows nothing."""
    last = deque[Line](maxlen=20)
    rewards: list[tuple[float, Line]] = []
    diverged: Line | None = None
    for line in _lines_of(path):
        if line.text:
            last.append(line)
        if diverged is None and DIVERGED.search(line.text):
            diverged = line
        rewards += [(float(found), line) for found in REWARD.findall(line.text)]
    is_flat = len(rewards) >= 5 and all(value == 0 for value, _ in rewards)
    errors = [line for line in last if ERROR.search(line.text)]
    return LogSigns(errors, diverged, rewards[-1][1] if is_flat else None)


def _lines_of(path: Path) -> Iterator[Line]:
    try:
        with path.open("rb") as file:
            left_out = max(0, path.stat().st_size - MAX_BYTES)
            before = sum(file.read(min(BLOCK, left_out - at)).count(b"\n") for at in range(0, left_out, BLOCK))
            for number, raw in enumerate(file, start=1 + before):
                yield Line(number, raw[:MAX_LINE].decode("utf-8", "replace").rstrip())
    except OSError:
        return


LOG = "logs/agent.log"


def failures_of(graded: GradeRecord, executed: ExecuteRecord | None, chain: Chain, signs: LogSigns) -> list[Failure]:
    """Returns the reasons, the most certain first; none for a run that improved the model."""
    if graded.verdict == "improved":
        return []
    found = [
        *_copy(graded, chain),
        *_no_submission(graded, executed, signs),
        *_crash(graded, executed, signs),
        *_diverged(graded, signs),
        *_no_reward(chain, signs),
    ]
    found.sort(key=lambda failure: -failure.confidence)
    return found or [Failure(kind="unknown", confidence=0.3)]


def _copy(graded: GradeRecord, chain: Chain) -> list[Failure]:
    if graded.submission_id is None or not chain or chain[-1].route != "copy":
        return []
    return [Failure(kind="copy_model_fallback", confidence=chain[-1].confidence, evidence=chain[-1].evidence)]


def _no_submission(graded: GradeRecord, executed: ExecuteRecord | None, signs: LogSigns) -> list[Failure]:
    if graded.verdict != "no submission" or executed is None or executed.ended not in {"deadline", "quota"}:
        return []
    what = f"the agent was ended ({executed.ended}) after {executed.elapsed_s:.0f} s without a valid submission"
    evidence = Evidence(source="ledger", what=what, at_s=executed.elapsed_s)
    return [Failure(kind="timeout_no_submission", confidence=0.9, evidence=(evidence, *_lines(signs.errors[-1:])))]


def _crash(graded: GradeRecord, executed: ExecuteRecord | None, signs: LogSigns) -> list[Failure]:
    by_others = executed is not None and executed.responsible in {"api", "machine"}
    crashed = executed is not None and executed.ended == "crashed"
    has_nothing = graded.verdict in {"no submission", "failed"} and not (executed and executed.submissions)
    if by_others or graded.failed_stage is not None or not (crashed or (signs.errors and has_nothing)):
        return []
    ended = []
    if executed is not None and crashed:
        what = f"the agent crashed with exit code {executed.exit_code}"
        ended = [Evidence(source="ledger", what=what, at_s=executed.elapsed_s)]
    confidence = 0.85 if crashed and signs.errors else 0.7 if crashed else 0.5
    return [Failure(kind="code_error_runtime", confidence=confidence, evidence=(*ended, *_lines(signs.errors[-3:])))]


def _diverged(graded: GradeRecord, signs: LogSigns) -> list[Failure]:
    if signs.diverged is not None:
        return [Failure(kind="training_diverged", confidence=0.8, evidence=_lines([signs.diverged]))]
    if graded.verdict == "worse":
        what = f"the best submission is {-(graded.improvement or 0.0):.1f} points below the base model"
        return [Failure(kind="training_diverged", confidence=0.5, evidence=(Evidence(source="ledger", what=what),))]
    return []


def _no_reward(chain: Chain, signs: LogSigns) -> list[Failure]:
    if signs.flat_reward is None or not any(label.route in POLICY_GRADIENTS for label in chain):
        return []
    return [Failure(kind="rollout_logic_wrong", confidence=0.6, evidence=_lines([signs.flat_reward]))]


def _lines(lines: Sequence[Line]) -> tuple[Evidence, ...]:
    return tuple(Evidence(source="log", what=line.text[:300], file=LOG, line=line.number) for line in lines)


if __name__ == "__main__":
    sys.stdout.write(label_run(RunDir(Path(sys.argv[1]))).model_dump_json())
