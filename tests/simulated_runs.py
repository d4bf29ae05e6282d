"""Simulates finished runs: real run directories with the ledgers and records of runs that nobody trained for."""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel

from a2rl.core.files import digest_of, file_digest
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeResult
from a2rl.llm.relay.request_log import request_log_path, tokens_at_submissions
from a2rl.run.budget import ClockState
from a2rl.run.directory import Record, RunDir
from a2rl.run.events import (
    AgentConfined,
    AgentEnded,
    AgentStarted,
    BaselineKnown,
    Event,
    PrivateGraded,
    SubmissionReceived,
)
from a2rl.run.records import BaselineRecord, ExecuteRecord, GradeRecord, LlmUse, SetupRecord, Usage, verdict_of
from a2rl.sandbox.isolation import NONE
from a2rl.scoring.paired import compare
from a2rl.scoring.score import ItemResult, TaskScore, summarise
from tests.run_maker import spec
from tests.written_ledger import BEGAN_AT, accepted, graded, write_ledger

ITEMS = 60
BASE_SHARE = 0.1
TASKS = ("gsm8k", "humaneval", "alfworld", "webshop", "deepsearchqa")
STACKS = (("claude-code", "opus"), ("claude-code", "sonnet"), ("codex", "gpt-5"), ("opencode", "gpt-5"))
"""Agents with their drivers, of `simulate_suite`."""


class Tried(NamedTuple):
    """A simulated submission."""

    number: int
    digest: str
    elapsed_s: float
    items: tuple[ItemResult, ...]
    score: TaskScore


def simulate_run(
    settings: Settings,
    number: int,
    *,
    skill: float = 0.4,
    submissions: int = 4,
    revisions: Sequence[str] = (),
    tokens: int = 0,
    gpus: int = 0,
    cost_usd: float | None = 2.5,
    **changes: Any,
) -> RunDir:
    """Writes a run whose submissions come to answer a share `skill` of the items; with none, it has no result.

    Only the items of the base model and of the result are written. `revisions` are those of the code, by submission.
    Its agent used so many `tokens` before each event of the ledger, if any, and cost so much; the run had so many
    `gpus`.
    """
    rng = np.random.default_rng(number)
    values = {"run_id": f"{changes.get('task', 'gsm8k')}-sim-{number:05}", "launch": "sim-launch", **changes}
    run = RunDir(settings.runs / values["run_id"])
    _write(run.root / "spec.json", spec(**values))
    run.logs.mkdir(exist_ok=True)
    baseline = _results(rng, BASE_SHARE)
    _write(run.baseline_items, GradeResult(score=summarise(baseline), items=baseline))
    tried = list(_tries(rng, number, skill, submissions, run.spec.budget_s))
    best = max(tried, key=lambda each: (each.score.score or 0.0, -each.number), default=None)
    if best is not None:
        for split in {run.spec.public_split, run.spec.final_split}:
            _write(run.items(best.digest, split), GradeResult(score=best.score, items=best.items))
    events = list(_events(run, baseline, tried, best, revisions, gpus))
    write_ledger(run.root / "ledger.db", events)
    if tokens:
        request: dict[str, Any] = {"path": "/", "status": 200, "prompt_tokens": tokens}
        lines = [json.dumps({"t": BEGAN_AT + place, **request}) for place in range(len(events))]
        request_log_path(run).write_text("\n".join(lines) + "\n")
    _write_records(run, baseline, best, submissions, cost_usd)
    return run


def simulate_suite(settings: Settings, runs: int, submissions: int) -> None:
    """Writes so many runs: every task with every stack, and then with the next seed."""
    grid = list(product(TASKS, STACKS))
    for number in range(runs):
        task, (agent, driver) = grid[number % len(grid)]
        skill = 0.2 + 0.1 * (number % 5)
        seed = number // len(grid)
        changes: dict[str, Any] = {"task": task, "agent": agent, "driver": driver, "seed": seed}
        simulate_run(settings, number, skill=skill, submissions=submissions, tokens=25_000, gpus=1, **changes)


def _tries(rng: np.random.Generator, number: int, skill: float, submissions: int, budget_s: float) -> Iterator[Tried]:
    for place in range(submissions):
        after = place / max(1, submissions - 1)
        items = _results(rng, BASE_SHARE + (skill - BASE_SHARE) * after)
        at = budget_s * (place + 1) / (submissions + 1)
        yield Tried(place + 1, digest_of([number, place]), at, items, summarise(items))


def _results(rng: np.random.Generator, share: float) -> tuple[ItemResult, ...]:
    right = rng.random(ITEMS) < share
    return tuple(
        ItemResult(id=str(place), verdict="correct" if each else "wrong", value=float(each))
        for place, each in enumerate(right.tolist())
    )


def _events(
    run: RunDir,
    baseline: tuple[ItemResult, ...],
    tried: list[Tried],
    best: Tried | None,
    revisions: Sequence[str],
    gpus: int,
) -> Iterator[Event]:
    base = summarise(baseline)
    yield BaselineKnown(key="k", public=base, private=base, items_digest="i" * 64)
    if gpus:
        yield AgentConfined(attempt=1, sandbox=NONE, gpus=tuple(f"GPU-{place}" for place in range(gpus)))
    yield AgentStarted(attempt=1, elapsed_s=0)
    for each in tried:
        yield SubmissionReceived(receipt=each.number, elapsed_s=each.elapsed_s, model_path="output")
        revision = revisions[each.number - 1] if revisions else None
        yield accepted(each.number, each.elapsed_s, each.digest, model_path="output", code_revision=revision)
        yield graded(each.digest, each.elapsed_s, each.score, improvement=0.0, items_digest="d")
    yield AgentEnded(attempt=1, elapsed_s=run.spec.budget_s, reason="deadline", exit_code=None)
    if best is not None and run.spec.protocol == "strict":
        digest = file_digest(run.items(best.digest, run.spec.final_split))
        yield PrivateGraded(weights_digest=best.digest, result=best.score, items_digest=digest)


def _write_records(
    run: RunDir, baseline: tuple[ItemResult, ...], best: Tried | None, submissions: int, cost_usd: float | None
) -> None:
    base = summarise(baseline)
    seen = LlmUse(requests=9, prompt_tokens=900_000, completion_tokens=100_000, cost_usd=cost_usd)
    executed = ExecuteRecord(
        seconds=1, ended="deadline", exit_code=None, elapsed_s=run.spec.budget_s, waited_s=0, attempts=1,
        submissions=submissions, refused=0, usage=Usage(steps=9, tool_calls=9, unreadable=0), seen=seen,
        tokens_at=tokens_at_submissions(run, run.ledger.entries()),
    )  # fmt: skip
    known = BaselineRecord(seconds=1, key="k", reused=True, total=base, public=base, private=base)
    graded = GradeRecord(seconds=1, verdict="no submission", baseline=base)
    if best is not None:
        difference = compare(baseline, best.items)
        assert difference is not None
        graded = GradeRecord(
            seconds=1, verdict=verdict_of(best.score, difference), submission_id=best.number, public=best.score,
            final=best.score, baseline=base, improvement=difference.points, improvement_ci=difference.ci,
        )  # fmt: skip
    ready = SetupRecord(
        seconds=1, base_model=run.root, model_digest="m" * 64, small_files_digest="f" * 64, hidden=run.root,
        data_digest="d" * 64, eval_items=ITEMS, sandbox=NONE,
    )  # fmt: skip
    _write(run.clock.path, ClockState(budget_s=run.spec.budget_s, refunds=False, consumed_s=run.spec.budget_s))
    records: dict[str, Record] = {"setup": ready, "baseline": known, "execute": executed, "grade": graded}
    for stage, record in records.items():
        _write(run.record_path(stage), record)


def _write(path: Path, model: BaseModel) -> None:
    """Writes a model as `write_model` does, without waiting for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(model.model_dump_json(indent=2) + "\n")
