"""Runs in a given state, made without stages: a spec, records, a clock, a ledger, a small hidden data set."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil

from a2rl.checkpoint import weights_digest
from a2rl.data import hidden_digest
from a2rl.errors import InfrastructureError
from a2rl.events import AgentEnded, AgentStarted, BaselineKnown, RunOpened, SubmissionAccepted
from a2rl.files import digest_of, write_jsonl, write_model
from a2rl.grading.job import GradeJob, GradeResult, selected_ids
from a2rl.isolation.strength import NONE
from a2rl.models import model_digest
from a2rl.records import BaselineRecord, ExecuteRecord, SetupRecord
from a2rl.run import RunDir, RunSpec
from a2rl.score import STATISTICS, ItemResult, summarise
from a2rl.settings import Settings

WAIT_S = 120  # far more than it takes; on a crowded machine a wait that is too short is a false alarm


def spec(**changes: Any) -> RunSpec:
    values: dict[str, Any] = {
        "run_id": "gsm8k-test-1", "suite": "tests", "task": "gsm8k", "variant": "mini", "agent": "noop", "driver": None,
        "mode": "free", "model": "small", "protocol": "strict", "seed": 0, "budget_s": 600.0, "max_submissions": None,
        "source": None, "backend": "transformers", "exact": False, "options": {}, "split_seed": 7, "grading_port": 0,
        "statistics": STATISTICS,
        "git_commit": "", "versions": {"a2rl": "0"}, "created_at": "2026-04-12T09:30:15+0000",
    }  # fmt: skip
    return RunSpec(**values | changes)


def make_hidden(folder: Path, items: int = 8) -> Path:
    folder.mkdir(parents=True)
    rows = [{"question": f"What is {n} + {n}?", "answer": f"{n}+{n}={2 * n}\n#### {2 * n}"} for n in range(items)]
    write_jsonl(folder / "eval.jsonl", rows)
    write_jsonl(folder / "shots.jsonl", [])
    return folder


def item_results(ids: Sequence[str], right: int) -> tuple[ItemResult, ...]:
    """The first `right` items are answered correctly."""
    return tuple(
        ItemResult(
            id=each, verdict="correct" if place < right else "wrong", value=float(place < right), answer="#### 1"
        )
        for place, each in enumerate(ids)
    )


def make_run(settings: Settings, base_model: Path, items: int = 8, started: bool = True, **changes: Any) -> RunDir:
    """A run after setup and baseline (of 2 right answers in each half); with `started`, its agent is at work."""
    run = RunDir.create(settings.runs, spec(**changes))
    hidden = make_hidden(settings.root / "data-of" / run.id / "hidden", items)
    for name in ("code", "output", "data"):
        (run.workspace / name).mkdir(parents=True)
    digest, data_digest = model_digest(base_model), hidden_digest(hidden.parent)
    run.write(
        "setup",
        SetupRecord(
            seconds=0, base_model=base_model, model_digest=digest, hidden=hidden, data_digest=data_digest, sandbox=NONE
        ),
    )
    run.clock.create(run.spec.budget_s, refunds=run.spec.protocol == "strict")
    run.ledger.append(
        RunOpened(spec_digest=digest_of(run.spec.model_dump(mode="json")), model_digest=digest, data_digest=data_digest)
    )
    _know_baseline(run, hidden)
    if started:
        run.clock.start()
        run.ledger.append(AgentStarted(attempt=1, elapsed_s=0.0))
    return run


def _know_baseline(run: RunDir, hidden: Path) -> None:
    halves = {
        split: item_results(
            selected_ids("gsm8k", hidden, split, run.spec.split_seed, statistics=run.spec.statistics), 2
        )
        for split in ("public", "private")
    }
    known = {item.id: item for half in halves.values() for item in half}
    items = tuple(known[each] for each in selected_ids("gsm8k", hidden, "all", 0))
    write_model(run.baseline_items, GradeResult(score=summarise(items), items=items))
    record = BaselineRecord(
        seconds=0,
        key="k" * 64,
        reused=False,
        total=summarise(items),
        public=summarise(halves["public"]),
        private=summarise(halves["private"]),
    )
    run.write("baseline", record)
    strict = run.spec.protocol == "strict"
    run.ledger.append(
        BaselineKnown(
            key=record.key,
            public=record.public if strict else record.total,
            private=record.private if strict else None,
        )
    )


def end_agent(run: RunDir) -> None:
    """The agent finishes by itself after nine seconds, with all its submissions graded."""
    run.clock.stop()
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=9.0, reason="finished", exit_code=0))
    count = len(run.ledger.events(SubmissionAccepted))
    record = ExecuteRecord(
        seconds=9,
        ended="finished",
        exit_code=0,
        elapsed_s=9,
        waited_s=0,
        attempts=1,
        submissions=count,
        refused=0,
    )
    run.write("execute", record)


def right_answers(model: Path, items: int) -> int:
    """What the fake grader thinks of a checkpoint: a number that follows from its weights alone."""
    return int(weights_digest(model)[:8], 16) % (items + 1)


class FakePool:
    """Grades by the weights' digest, at once or when told to; counts what it was asked."""

    def __init__(self, at_once: bool = True, failure: str = "") -> None:
        self.jobs: list[GradeJob] = []
        self._at_once = at_once
        self.failure = failure
        self._waiting: list[tuple[GradeJob, Future[GradeResult]]] = []

    def submit(self, job: GradeJob) -> "Future[GradeResult]":
        future: Future[GradeResult] = Future()
        self.jobs.append(job)
        self._waiting.append((job, future))
        if self._at_once:
            self.grade_all()
        return future

    def grade_all(self) -> None:
        while self._waiting:
            job, future = self._waiting.pop(0)
            if self.failure:
                future.set_exception(InfrastructureError(self.failure))
                continue
            ids = selected_ids(job.task, job.hidden, job.split, job.split_seed, statistics=job.statistics)
            result = GradeResult.of(list(item_results(ids, right_answers(job.model, len(ids)))), 0.5)
            write_model(job.result, result)
            future.set_result(result)


def wait_for(condition: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
    """Returns what the condition gives as soon as it is true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return value


def alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
