"""What the report over many runs needs of one run. It is computed once and kept in the run's directory."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from a2rl.core.errors import A2rlError
from a2rl.core.files import FrozenModel, digest_of, read_model, write_model
from a2rl.grading.job import GradeResult
from a2rl.labels.records import labels_of
from a2rl.models.checkpoint import parameters_in, parameters_in_name
from a2rl.results.figures import RunMetrics, contributions_of, result_items, run_metrics
from a2rl.run.directory import UNREADABLE, RunDir
from a2rl.run.events import AgentConfined, BaselineKnown, RunOpened, SubmissionAccepted, SubmissionRefused
from a2rl.run.inputs import find_base_model
from a2rl.run.ledger import Entry, events_of, grades_among
from a2rl.run.records import ExecuteRecord, GradeRecord, RunVerdict
from a2rl.run.spec import RunSettings, RunSpec
from a2rl.scoring.means import Interval
from a2rl.validity.record import Word, counted, read_validity

STATE_FILES = (
    "spec.json", "ledger.db", "ledger.db-wal", "records/grade.json", "records/execute.json", "records/labels.json",
    "records/validity.json", "clock.json",
    "grades/baseline.json", "grades",
)  # fmt: skip
"""A summary is computed anew if one of these has changed. The folder stands for the files in it, which are replaced."""

SETTINGS = {*RunSettings.model_fields, "options", "exact", "vllm"}
"""The fields of a specification that tell stacks apart: what the user chose, and how params.yaml had it graded."""


class Try(NamedTuple):
    """A graded submission. Not a model: there are tens of thousands of them, and tuples are faster to read."""

    number: int
    elapsed_s: float
    """Since the start of the agent, with what was given back."""
    score: float
    """Public score, 0 to 100."""
    tokens: int | None = None
    """The tokens that the agent had used when it submitted, as the relay measured them; None if that is unknown."""


class RunSummary(FrozenModel):
    """A finished run, or what is known of an unfinished one."""

    schema_version: Literal[7] = 7
    state: str
    """The sizes and times of the files that this was computed from."""
    run_id: str
    suite: str
    launch: str
    settings: dict[str, Any]
    """The fields of the specification that `SETTINGS` names."""
    verdict: RunVerdict | None
    """None if the run is not finished."""
    validity: Word | None
    """What the result is worth; None if it was not decided."""
    reason: str
    gain: float
    """Points; 0 for a run without a result, and for a void one that gained."""
    ci: Interval | None
    cross_fitted: float | None
    baseline: float | None
    final: float | None
    public_baseline: float | None
    submissions: int
    refused: int
    agent_s: float
    cost_usd: float | None
    tokens: int | None
    gpu_hours: float | None
    """The agent's time, multiplied by the number of GPUs of the run; None for a run without GPUs. GPUs that only grade
    are divided equally among the runs that were to go on side by side."""
    parameters: int | None
    """The number of parameters of the base model; None if it is unknown."""
    route: tuple[str, ...] = ()
    """The labels of the route to the result, in order: see a2rl/labels/. Empty for a run that has no labels."""
    failures: tuple[str, ...] = ()
    """Why the model did not improve, in the paper's types."""
    metrics: RunMetrics
    tries: tuple[Try, ...]
    items_digest: str
    """Identifies the items that decide: the data, and which of its items. Empty for a run without a result."""
    gains: tuple[float, ...]
    """What each of these items gained, -1 to 1, sorted by id. Empty for a run without a result."""
    bundle: str = ""
    """The SHA-256 of the bundle that it was read from; empty for a run of this checkout, as the next fields."""
    signed_by: str = ""
    """Whose key signed the ledger, in words."""
    graded_anew: bool = False
    """Whether its checkpoint was graded again by the auditor, with the same result for each item."""

    @property
    def task(self) -> str:
        """The id of the task."""
        return str(self.settings["task"])

    @property
    def variant(self) -> str:
        """Mini or full; figures of the two are never combined."""
        return str(self.settings["variant"])

    @property
    def is_finished(self) -> bool:
        """Whether the run has an outcome, if only a failure."""
        return self.verdict is not None


class Summaries(NamedTuple):
    """The summaries of some runs."""

    runs: list[RunSummary]
    unreadable: dict[str, str]
    """Run id -> why the run cannot be read."""


def summaries(runs: Iterable[RunDir]) -> Summaries:
    """Returns the summary of each run that can be read, and what is wrong with the others."""
    found = Summaries([], {})
    for run in runs:
        try:
            found.runs.append(summary_of(run))
        except UNREADABLE as error:
            found.unreadable[run.id] = str(error)
    return found


def summary_of(run: RunDir) -> RunSummary:
    """Returns the summary of a run, from the file of an earlier call if the run has not changed.

    Raises:
        A2rlError: The run cannot be read.
    """
    run.check_plain()
    file, state = run.root / "summary.json", _state(run.root)
    with suppress(*UNREADABLE):
        if (kept := read_model(file, RunSummary)).state == state:
            return kept
    found = _summarise(run, state)
    with suppress(A2rlError):  # a run directory of somebody else's is read-only
        write_model(file, found)
    return found


def _state(root: Path) -> str:
    found = []
    for name in STATE_FILES:
        try:
            status = os.stat(f"{root}/{name}")  # noqa: PTH116 - thousands of paths would take longer than the calls
        except FileNotFoundError:
            continue
        # A program can set the time of the last change of contents, but not that of the last change of any kind. So
        # nobody can send a run with a summary that fits its copy.
        found.append(f"{name} {status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}")
    return digest_of(found)


def _summarise(run: RunDir, state: str) -> RunSummary:
    spec, graded, entries = run.spec, run.read("grade", GradeRecord), run.ledger.entries()
    executed = run.read("execute", ExecuteRecord)
    digest, gains = _gains(run, graded, entries)
    labels, validity = labels_of(run), read_validity(run)
    counts, agent_s = counted(run, graded), _agent_s(run, executed)
    return RunSummary(
        state=state,
        run_id=run.id,
        suite=spec.suite,
        launch=spec.launch,
        settings=spec.model_dump(mode="json", include=SETTINGS),
        verdict=graded.verdict if graded else None,
        reason=graded.reason if graded else "",
        validity=validity.word if validity else None,
        gain=counts.gain,
        ci=counts.ci,
        cross_fitted=counts.cross_fitted,
        baseline=graded.baseline.score if graded else None,
        final=graded.final.score if graded and graded.final else None,
        public_baseline=next((event.public.score for event in events_of(entries, BaselineKnown)), None),
        submissions=executed.submissions if executed else len(events_of(entries, SubmissionAccepted)),
        refused=sum(event.count for event in events_of(entries, SubmissionRefused)),
        agent_s=agent_s,
        cost_usd=executed.cost_usd if executed else None,
        tokens=executed.seen.tokens if executed and executed.seen else None,
        gpu_hours=_gpu_hours(spec, entries, agent_s),
        parameters=_parameters(run),
        route=tuple(label.route for label in labels.chain) if labels else (),
        failures=tuple(failure.kind for failure in labels.failures) if labels else (),
        metrics=run_metrics(run, entries),
        tries=tuple(_tries(entries, executed.tokens_at if executed else {})),
        items_digest=digest,
        gains=gains if counts.is_measured else (0.0,) * len(gains),
    )


def _agent_s(run: RunDir, executed: ExecuteRecord | None) -> float:
    """Returns the agent's time, also of a run whose machine failed before the end of the agent was recorded."""
    if executed is not None:
        return executed.elapsed_s - executed.stood_still_s
    return run.clock.used_s()


def _gpu_hours(spec: RunSpec, entries: Sequence[Entry], agent_s: float) -> float | None:
    confined = events_of(entries, AgentConfined)
    gpus = len(confined[-1].gpus) + spec.grading_gpus / spec.side_by_side if confined else 0
    return gpus * agent_s / 3600 or None


def _parameters(run: RunDir) -> int | None:
    with suppress(A2rlError, OSError):
        if (base := find_base_model(run)) is not None and (found := parameters_in(base)) is not None:
            return found
    return parameters_in_name(run.spec.model)


def _tries(entries: Sequence[Entry], tokens_at: Mapping[int, int]) -> Iterator[Try]:
    grades = grades_among(entries)
    for entry in entries:
        event = entry.event
        if not isinstance(event, SubmissionAccepted) or event.weights_digest not in grades:
            continue
        grade = grades[event.weights_digest]
        if grade.result.score is not None:
            told_s, number = max(event.elapsed_s, grade.elapsed_s), event.submission_id
            yield Try(number=number, elapsed_s=told_s, score=grade.result.score, tokens=tokens_at.get(number))


def _gains(run: RunDir, graded: GradeRecord | None, entries: Sequence[Entry]) -> tuple[str, tuple[float, ...]]:
    """Returns the digest of the items that decide, and what each item gained."""
    path = result_items(run, entries, graded.submission_id) if graded else None
    if path is None or not run.baseline_items.exists():
        return "", ()
    files = (run.baseline_items, path)
    before, after = ({item.id: item for item in read_model(each, GradeResult).items} for each in files)
    ids = sorted(after)
    judged = [each for each in ids if each in before and "errored" not in (before[each].verdict, after[each].verdict)]
    values = [contributions_of(run, [items[each] for each in judged]) if judged else None for items in (before, after)]
    if values[0] is None or values[1] is None:
        return "", ()
    gains = dict(zip(judged, (new - old for old, new in zip(values[0], values[1], strict=True)), strict=True))
    # Items of two draws have the same ids, so the digest of the eval set counts, too.
    data = next((event.data_digest for event in events_of(entries, RunOpened)), "")
    typical = fmean(gains.values())  # for an item that could not be graded, so that the mean stays the run's gain
    return digest_of([data, ids]), tuple(round(gains.get(each, typical), 6) for each in ids)
