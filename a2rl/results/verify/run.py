"""All checks of a run, in order, and whom a reader trusts besides the run's own files.

The checks of the records are here, too: that each follows from the ledger, the result from the items, and the items
from the draw. MLflow must show what these say.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.anchor.signatures import PENDING_S, Head, check_signatures, load_public_key
from a2rl.anchor.signing import EMPTY, SignedHistory
from a2rl.config.params import load_params
from a2rl.core.errors import A2rlError, InfrastructureError, IntegrityError, UsageError
from a2rl.core.files import digest_of, read_jsonl, read_model, read_text
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeResult
from a2rl.grading.submission_states import invalid_transition
from a2rl.results.figures import cross_fitted_gain, improvement_of, result_metrics, result_tags, run_params
from a2rl.results.mlflow.store import TrackingError, short_text
from a2rl.results.mlflow.tracking import HEAD_TAG, RESULT, Mirrored, Tracker, last_points, nested_metrics
from a2rl.results.verify.check import (
    NOTHING_ABSENT,
    Absent,
    CheckOutcome,
    NotCheckedError,
    check_baseline,
    check_checkpoints,
    check_code,
    check_files,
    check_inputs,
    check_items,
    check_report,
    made,
    require,
)
from a2rl.run.directory import RunDir
from a2rl.run.draw import Draw
from a2rl.run.events import (
    AgentEnded,
    BaselineKnown,
    DrawRevealed,
    PrivateGraded,
    RunClosed,
    RunFailed,
    RunInterrupted,
    RunOpened,
    SubmissionAccepted,
    SubmissionRefused,
    ValidityDecided,
)
from a2rl.run.failure import why_no_result
from a2rl.run.inputs import is_of_others
from a2rl.run.ranking import best_submission, chosen_among
from a2rl.run.records import ExecuteRecord, GradeRecord, SetupRecord, judge_record, verdict_of
from a2rl.scoring.score import same
from a2rl.task_api.data import can_draw, drawn_digest
from a2rl.validity.record import FROM_WORST, STAGE, Validity, ValidityRecord, event_of, may_reveal

WITHOUT_SETUP = (RunFailed, RunInterrupted, ValidityDecided, DrawRevealed, RunClosed)
"""All that can happen in a run whose setup fails."""


def check_records(run: RunDir) -> None:
    """Compares the records of all stages with the ledger, and the result with what follows from the items."""
    _check_execute(run)
    record = run.read("grade", GradeRecord)
    if record is None:
        return
    best = best_submission(run.ledger)
    if record.final is None:
        _check_no_result(record, best is not None)
    if record.verdict == "failed" and record.final is None:
        _check_failure(run, record)
        return
    strict = run.spec.protocol == "strict"
    known = next((each.private if strict else each.public for each in run.ledger.events(BaselineKnown)), None)
    require(record.baseline == known, "the record's baseline is not the ledger's")
    require(
        record.submission_id == (best.submission.submission_id if best else None),
        "the record names a different best submission than the ledger",
    )
    if best is None or record.final is None:
        require(record.final is None, "the record has a result, but the ledger has no submission with a score")
        return
    require(record.public == best.score, "the record's public score is not the ledger's")
    digest = best.submission.weights_digest
    private = [(each.weights_digest, each.result) for each in run.ledger.events(PrivateGraded)]
    finals = private if strict else [(digest, best.score)]
    require(finals == [(digest, record.final)], "the record's final score is not the ledger's")
    _check_improvement(run, record, digest)


def _check_execute(run: RunDir) -> None:
    """Compares the account of the agent's work with the events."""
    record = run.read("execute", ExecuteRecord)
    if record is None:
        return
    ended = run.ledger.events(AgentEnded)
    require(bool(ended), "the record says how the agent ended, but the ledger does not")
    require(record.ended == ended[-1].reason, f"the agent ended as {ended[-1].reason}, the record says {record.ended}")
    is_same = (record.why, record.responsible) == (ended[-1].why, ended[-1].responsible)
    require(is_same, "the record gives another reason for the agent's end than the ledger")
    require(same(record.elapsed_s, ended[-1].elapsed_s), "the record gives another time for the agent than the ledger")
    tokens = record.seen.tokens if record.seen else 0
    used = (record.elapsed_s, record.cost_usd, tokens)
    require(all(each is None or each >= 0 for each in used), "the record has a negative time, cost or number of tokens")
    possible = all(0 <= each <= tokens for each in record.tokens_at.values())
    require(possible, "the record counts more tokens at a submission than in all, or less than none")
    accepted = len(run.ledger.events(SubmissionAccepted))
    require(
        record.submissions == accepted, f"the record counts {record.submissions} submissions, the ledger {accepted}"
    )
    refused = sum(event.count for event in run.ledger.events(SubmissionRefused))
    require(record.refused == refused, f"the record counts {record.refused} refusals, the ledger {refused}")


def _check_no_result(record: GradeRecord, has_best: bool) -> None:
    """Checks that a record without a result claims none."""
    require(record.verdict in {"failed", "no submission"}, f"the record says {record.verdict!r}, but has no result")
    require(record.verdict == "failed" or not has_best, "the record has no result, but the ledger has a submission")
    figures = (record.public, record.improvement, record.improvement_ci, record.cross_fitted, record.submission_id)
    require(not any(each is not None for each in figures), "the record has no result, but figures of one")


def _check_failure(run: RunDir, record: GradeRecord) -> None:
    """Checks that the ledger also says that the run has failed."""
    executed = run.read("execute", ExecuteRecord)
    if record.failed_stage is not None:
        known = any(event.stage == record.failed_stage for event in run.ledger.events(RunFailed))
        require(known, "the record says that a stage failed, but the ledger does not")
    else:
        lacks_score = best_submission(run.ledger) is None
        excused = executed is not None and why_no_result(run, executed) == record.reason
        unjudged = any(each.result.score is None for each in run.ledger.events(PrivateGraded))
        require(excused or lacks_score or unjudged, "the record says that the run failed, but the ledger has a result")


def _check_account(run: RunDir) -> None:
    record = run.read("grade", GradeRecord)
    if record is None or record.judge is None:
        return
    if is_of_others(run) and not run.account.exists():  # no bundle has it
        raise NotCheckedError("the judge's account is not here")
    known = judge_record(run)
    require(
        known is not None and known.use == record.judge.use,
        f"the record's judge was paid ${record.judge.use.dollars:.4f}, but {run.account.name} says something else",
    )


def _check_improvement(run: RunDir, record: GradeRecord, weights_digest: str) -> None:
    """Recomputes the improvement, its interval and the verdict from the items."""
    final = read_model(run.items(weights_digest, run.spec.final_split), GradeResult)
    difference = improvement_of(run, final.items)
    found = (difference.points, *difference.ci) if difference else (None, None, None)
    claimed = (record.improvement, *(record.improvement_ci or (None, None)))
    require(all(map(same, claimed, found)), "the record's improvement does not follow from the items")
    require(record.chosen_among == chosen_among(run), "the record counts a different number of submissions")
    require(
        same(record.cross_fitted, cross_fitted_gain(run)),
        "the record's cross-fitted gain does not follow from the items",
    )
    require(
        verdict_of(final.score, difference) == record.verdict, "the record's verdict does not follow from the items"
    )


def check_validity(run: RunDir) -> None:
    """Checks the validity of a run; one that was not decided passes.

    Raises:
        IntegrityError: The record was changed, or the validity of a result became better.
    """
    record, decided = run.read(STAGE, ValidityRecord), run.ledger.events(ValidityDecided)
    _check_order(decided)
    if record is None:
        return
    require(bool(decided) and decided[-1] == event_of(record), "the validity in the record is not the ledger's")
    require(
        Validity.of(record.validity.findings, record.validity.word != "no result").word == record.validity.word,
        "the validity in the record does not follow from its findings",
    )
    for each in record.validity.findings:
        same = type(each).of(each.kind, each.level, each.text, *each.evidence)
        require(same.id == each.id, f"the finding {each.id} was changed after it was made")


def _check_order(decided: list[ValidityDecided]) -> None:
    worst: dict[str, int] = {}
    for event in decided:
        rank = [str(word) for word in FROM_WORST].index(event.validity) if event.validity in FROM_WORST else -1
        require(rank >= 0, f"the ledger has an unknown validity {event.validity!r}")
        require(rank <= worst.get(event.grade_digest, rank), "the validity of a result became better")
        worst[event.grade_digest] = rank


def check_draw(run: RunDir) -> None:
    """Checks that the eval set and its halves follow from the draw that the run committed to at its start.

    Raises:
        IntegrityError: Something does not follow from what the run committed to.
    """
    spec, opened = run.spec, run.ledger.events(RunOpened)
    commitment = opened[0].draw if opened else ""
    if spec.draw is None or not opened:
        require(not commitment, "the run committed to a draw, but spec.json has none")
        return
    require(spec.draw.commitment == commitment, "the draw in spec.json is not the one that the run committed to")
    require(spec.split_seed == spec.draw.halves_seed, "the halves do not follow from the draw")
    _check_revealed(run, spec.draw)
    if can_draw(spec.task, spec.variant):
        found = drawn_digest(spec.task, spec.draw.items_seed(spec.task))
        problem = "the items do not follow from the draw"
        if (made_by := spec.versions.get("a2rl")) is not None:
            problem += f" (the run was made by a2rl {made_by}: another version may draw other items)"
        require(found == opened[0].data_digest, problem)


def _check_revealed(run: RunDir, draw: Draw) -> None:
    revealed = [Draw(seed=event.seed, salt=event.salt) for event in run.ledger.events(DrawRevealed)]
    if run.record_path("validity").exists():
        require(bool(revealed) or not may_reveal(run), "the run has ended without revealing its draw")
    require(all(each == draw for each in revealed), "the draw that the run revealed is not the one it committed to")


def check_mlflow(run: RunDir, tracker: Tracker | None) -> None:
    """Compares the figures, parameters and digests that MLflow shows of a run, and the tags of its result."""
    if tracker is None:
        raise NotCheckedError("MLflow is not here")
    try:
        mirrored = tracker.mirrored(run)
    except TrackingError as error:  # of this machine or its server, so it says nothing about the run
        raise NotCheckedError(str(error)) from error
    require(bool(mirrored), f"MLflow does not have the run: `a2rl report {run.id}` mirrors it again")
    _check_nested(run, mirrored)
    curves = {"public_score": None, "best_public_score": None} | last_points(run, run.ledger.entries())
    _check_figures("the run", mirrored[RESULT], curves)
    _check_params(run, mirrored[RESULT])
    record = run.read("grade", GradeRecord)
    if record is not None:
        _check_result(run, record, mirrored[RESULT])
        head = mirrored[RESULT].tags.get(HEAD_TAG)
        require(head == run.ledger.verify(), "the ledger has grown or changed since the run was closed")


def _check_nested(run: RunDir, mirrored: Mapping[str, Mirrored]) -> None:
    """Checks the baseline and the submissions: each is there, with its figures alone, and nothing else is."""
    known = nested_metrics(run, run.ledger.entries())
    for name in mirrored:
        is_part = name in known or name == RESULT
        require(is_part, f"MLflow shows {name[:100]!r}, which is no part of the run: delete it there")
    for name, figures in known.items():
        shown = mirrored.get(name, Mirrored({}, {}, {}))
        _check_figures(name, shown, dict.fromkeys(shown.metrics) | figures)
    for event in run.ledger.events(SubmissionAccepted):
        if (name := f"submission {event.submission_id}") in known:
            tags = {"a2rl.weights_digest": event.weights_digest, "a2rl.code_revision": event.code_revision or ""}
            _check_tags(name, mirrored[name], tags)


def _check_params(run: RunDir, shown: Mirrored) -> None:
    ready = run.read("setup", SetupRecord)
    if ready is None:
        return
    params = {name: short_text(str(value)) for name, value in run_params(run, ready).items()}
    for name, value in params.items():
        found = shown.params.get(name)
        require(found == value, f"MLflow shows {found} as {name}, the run says {value}")
    digests = {"a2rl.model_digest": ready.model_digest, "a2rl.data_digest": ready.data_digest}
    _check_tags("the run", shown, digests)


def _check_result(run: RunDir, record: GradeRecord, shown: Mirrored) -> None:
    executed = run.read("execute", ExecuteRecord)
    if executed is None and record.failed_stage is None:
        return
    always = {"score": record.final.score if record.final else None, "improvement": record.improvement}
    _check_figures("the result", shown, always | result_metrics(run, record, executed))
    _check_tags("the result", shown, result_tags(run, record))


def _check_figures(what: str, shown: Mirrored, figures: Mapping[str, float | None]) -> None:
    for name, value in figures.items():
        found = shown.metrics.get(name)
        require(same(found, value), f"{what}: MLflow shows {found} as {name}, the run says {value}")


def _check_tags(what: str, shown: Mirrored, tags: Mapping[str, str]) -> None:
    for name, value in tags.items():
        found = shown.tags.get(name, "")
        require(found == short_text(value), f"{what}: MLflow shows {found[:100]!r} as {name}, the run says {value!r}")


class Trust(NamedTuple):
    """The keys and the heads that a reader trusts."""

    keys: frozenset[str] = frozenset()
    """The public keys whose signatures count. If there is one, the run must be signed."""
    history: SignedHistory | None = None
    """What this checkout's own key has signed."""
    published: tuple[Head, ...] = ()
    """Heads of the run that the reader knows from elsewhere, such as from time stamps."""


NOBODY = Trust()


def trust_of(settings: Settings, public_keys: Iterable[Path] = ()) -> Trust:
    """Returns whom a checkout trusts: the keys given here, or else those of params.yaml, and what its own key signed.

    Raises:
        UsageError: A key cannot be read.
    """
    params = load_params(settings.root).anchor
    paths = list(public_keys) or [settings.root / path for path in params.public_keys]
    history = SignedHistory.beside(settings.root / params.key) if params.key else None
    return Trust(frozenset(map(load_public_key, paths)), history if history and history.path.exists() else None)


def read_published(path: Path, run_id: str) -> tuple[Head, ...]:
    """Reads the published heads of a run from a file with one JSON object in each line.

    Raises:
        UsageError: The file cannot be read, or names no head of the run.
    """
    try:
        rows = [row for row in read_jsonl(path) if row.get("run") == run_id]
        heads = tuple(Head(seq=row["seq"], hash=row["hash"]) for row in rows)
    except (OSError, ValueError, KeyError, A2rlError) as error:
        raise UsageError(f"{path} does not have published heads, one JSON object in each line: {error}") from error
    if not heads:
        raise UsageError(f"{path} has no head of run {run_id}")
    return heads


def verify_run(
    run: RunDir, tracker: Tracker | None, trust: Trust = NOBODY, absent: Absent = NOTHING_ABSENT
) -> list[CheckOutcome]:
    """Runs all checks of a run; the run is sound if none of them finds a problem.

    Args:
        tracker: MLflow; None if it is not here.
    """
    # A new object, so that the checks use what is on disk now and nothing that the caller has read before.
    run = RunDir(run.root)
    checks: list[tuple[str, Callable[[], str | None]]] = [
        ("the ledger's hash chain", lambda: _check_chain(run)),
        ("the ledger's heads are signed", lambda: _check_signed(run, trust)),
        ("the ledger has the heads that were published", lambda: _check_published(run, trust)),
        ("the settings are those the run was opened with", lambda: _check_spec(run)),
        ("the eval set follows from the draw that the run committed to", lambda: check_draw(run)),
        ("the base model and the data are those the run began with", lambda: check_inputs(run, absent)),
        ("every submission ends in exactly one way", lambda: _check_submissions(run)),
        ("checkpoints are the ones that were graded", lambda: check_checkpoints(run, absent)),
        ("the baseline is that of this base model and these items", lambda: check_baseline(run)),
        ("scores follow from the per-item results", lambda: check_items(run)),
        ("the records follow from the ledger", lambda: check_records(run)),
        ("the judge was paid what the record says", lambda: _check_account(run)),
        ("the validity only became worse, and its findings are unchanged", lambda: check_validity(run)),
        ("files are those with which the run ended", lambda: check_files(run, absent)),
        ("the agent's code is that of its history", lambda: check_code(run)),
        ("the report is that of the run", lambda: check_report(run, absent)),
        ("MLflow shows what the ledger says", lambda: check_mlflow(run, tracker)),
    ]
    return [made(what, check) for what, check in checks]


def _check_chain(run: RunDir) -> str:
    return f"{len(run.ledger.rows())} entries, head {run.ledger.verify()[:16]}"


def _check_signed(run: RunDir, trust: Trust) -> str:
    head, problem = EMPTY, ""
    try:
        if trust.history is not None:
            head = trust.history.known(run.id, run.ledger.rows())
    except InfrastructureError as error:
        problem = f"; {error}"
    # Of a run of others, the end is as old as they say. Here, a new entry may still wait for its signature.
    found = check_signatures(run, trust.keys, pending_s=0.0 if is_of_others(run) else PENDING_S)
    if not found:
        require(head == EMPTY, f"its signatures were removed: this checkout has signed it up to entry {head.seq}")
        raise NotCheckedError("the run is not signed, so whoever can write its files could have rewritten all of them")
    return found + (problem or ("" if trust.keys else "; nobody vouches for the key: give --public-key"))


def _check_published(run: RunDir, trust: Trust) -> str:
    if not trust.published:
        raise NotCheckedError("none were given")
    hashes = {row.seq: row.hash for row in run.ledger.rows()}
    for head in trust.published:
        require(hashes.get(head.seq) == head.hash, f"entry {head.seq} is not the one that was published")
    return f"{len(trust.published)} heads"


def _check_spec(run: RunDir) -> str:
    opened = run.ledger.events(RunOpened)
    if not opened and all(isinstance(entry.event, WITHOUT_SETUP) for entry in run.ledger.entries()):
        raise NotCheckedError("the run failed before it was set up")
    require(len(opened) == 1, "the ledger does not begin with one run")
    spec = run.spec
    try:
        written = json.loads(read_text(run.root / "spec.json"))  # as its version of a2rl wrote it
        digest = digest_of(written)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"spec.json has no digest: {error}") from error
    require(opened[0].spec_digest == digest, "spec.json was changed after the run began")
    require(spec.run_id == run.id, f"spec.json is that of run {spec.run_id}")
    unknown = sorted(_unknown(written, spec.model_dump(mode="json")))
    return f"this version of a2rl does not know {', '.join(unknown[:5])}" if unknown else ""


def _unknown(written: Any, known: Any, place: str = "") -> Iterator[str]:
    """Yields the settings that a file has and this version has not: `vllm.gpu_memory_utilization`."""
    if isinstance(written, dict) and isinstance(known, dict):
        for name, value in written.items():
            yield from _unknown(value, known[name], f"{place}{name}.") if name in known else (f"{place}{name}",)


def _check_submissions(run: RunDir) -> None:
    finished = run.read("execute", ExecuteRecord) is not None
    problem = invalid_transition(run.ledger.entries(), finished)
    require(not problem, problem)
