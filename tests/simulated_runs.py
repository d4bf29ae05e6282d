"""Simulates finished runs: real run directories with the ledgers and records of runs that nobody trained for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from a2rl.core.files import digest_of, file_digest, write_model
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeResult
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, BaselineKnown, Graded, PrivateGraded, SubmissionAccepted
from a2rl.run.records import BaselineRecord, ExecuteRecord, GradeRecord, Usage, verdict_of
from a2rl.scoring.paired import compare
from a2rl.scoring.score import ItemResult, summarise
from tests.run_maker import spec

ITEMS = 60


def simulate_run(
    settings: Settings, number: int, *, skill: float = 0.4, submissions: int = 4, **changes: Any
) -> RunDir:
    """Writes a run whose submissions come to answer a share `skill` of the items; with none, it has no result."""
    rng = np.random.default_rng(number)
    values = {"run_id": f"{changes.get('task', 'gsm8k')}-sim-{number:05}", "launch": "sim-launch", **changes}
    run = RunDir.create(settings.runs, spec(**values))
    baseline = _results(rng, 0.1)
    write_model(run.baseline_items, GradeResult(score=summarise(baseline), items=tuple(baseline)))
    base = summarise(baseline)
    run.write("baseline", BaselineRecord(seconds=1, key="k", reused=True, total=base, public=base, private=base))
    run.ledger.append(BaselineKnown(key="k", public=base, private=base))
    run.ledger.append(AgentStarted(attempt=1, elapsed_s=0))
    best: tuple[float, int, Sequence[ItemResult]] | None = None
    for place in range(submissions):
        after = place / max(1, submissions - 1)
        items = _results(rng, 0.1 + (skill - 0.1) * after)
        at, digest = run.spec.budget_s * (place + 1) / (submissions + 1), digest_of([number, place])
        write_model(run.items(digest, run.spec.public_split), GradeResult(score=summarise(items), items=tuple(items)))
        run.ledger.append(
            SubmissionAccepted(
                submission_id=place + 1, elapsed_s=at, model_path="output", weights_digest=digest, code_revision=None
            )
        )
        score = summarise(items)
        run.ledger.append(Graded(weights_digest=digest, elapsed_s=at, result=score, improvement=0.0, items_digest="d"))
        if best is None or (score.score or 0) > best[0]:
            best = (score.score or 0.0, place + 1, items)
            final = run.items(digest, run.spec.final_split)
            write_model(final, GradeResult(score=score, items=tuple(items)))
            last = PrivateGraded(weights_digest=digest, result=score, items_digest=file_digest(final))
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=run.spec.budget_s, reason="deadline", exit_code=None))
    if best is not None and run.spec.protocol == "strict":
        run.ledger.append(last)
    _write_records(run, baseline, best, submissions)
    return run


def _results(rng: np.random.Generator, share: float) -> list[ItemResult]:
    right = rng.random(ITEMS) < share
    return [
        ItemResult(id=str(place), verdict="correct" if each else "wrong", value=float(each))
        for place, each in enumerate(right.tolist())
    ]


def _write_records(
    run: RunDir, baseline: list[ItemResult], best: tuple[float, int, Sequence[ItemResult]] | None, submissions: int
) -> None:
    usage = Usage(
        steps=9, tool_calls=9, prompt_tokens=900_000, completion_tokens=100_000, cached_tokens=0, cost_usd=2.5,
        unreadable=0,
    )  # fmt: skip
    run.write(
        "execute",
        ExecuteRecord(
            seconds=1, ended="deadline", exit_code=None, elapsed_s=run.spec.budget_s, waited_s=0, attempts=1,
            submissions=submissions, refused=0, usage=usage,
        ),
    )  # fmt: skip
    if best is None:
        run.write("grade", GradeRecord(seconds=1, verdict="no submission", baseline=summarise(baseline)))
        return
    score, difference = summarise(best[2]), compare(baseline, best[2])
    assert difference is not None
    run.write(
        "grade",
        GradeRecord(
            seconds=1, verdict=verdict_of(score, difference), submission_id=best[1], public=score, final=score,
            baseline=summarise(baseline), improvement=difference.points, improvement_ci=difference.ci,
        ),
    )  # fmt: skip
