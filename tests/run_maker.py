"""Makes runs in any state up to finished: a spec, records, a clock, a ledger and a small hidden data set."""

import gzip
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import psutil
import pytest
import yaml

from a2rl import __version__
from a2rl.core.files import digest_of, file_digest, folder_digest, read_model, write_jsonl, write_model
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeJob, GradeResult, ids_of_job, ids_of_run
from a2rl.grading.outputs import Output, Turn, outputs_path
from a2rl.grading.pool import GraderPool, GradingError
from a2rl.grading.receiving import SubmitRequest
from a2rl.grading.service import GradingService
from a2rl.grading.submission_queue import PendingSubmission
from a2rl.judge.params import JudgeParams
from a2rl.models.base_model import model_digest
from a2rl.models.checkpoint import SMALL_FILES, weights_digest
from a2rl.recording.trajectory import keep_summary
from a2rl.results.manifest import close_run
from a2rl.results.mlflow.store import MlflowStore
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.report.page import write_report
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, BaselineKnown, RunOpened, SubmissionAccepted, SubmissionRefused
from a2rl.run.inputs import hidden_of, place_in
from a2rl.run.ranking import best_submission
from a2rl.run.records import BaselineRecord, ExecuteRecord, ReportRecord, SetupRecord
from a2rl.run.spec import RunSpec
from a2rl.sandbox.isolation import NONE
from a2rl.scoring.score import STATISTICS, ItemResult, summarise
from a2rl.task_api.contract import Split
from a2rl.task_api.data import hidden_digest
from a2rl.validity.checks import run_checks
from stages.grade import grade
from stages.validity import validity
from tests.small_model import build_base_model, trained_copy

REPOSITORY = Path(__file__).resolve().parent.parent

WAIT_S = 120  # far more than is needed: on a busy machine, a wait that is too short would be a false alarm


def checkout(folder: Path) -> Settings:
    """Makes a checkout with this one's code, but its own data, runs, baselines and MLflow store."""
    for name in ("a2rl", "agents", "flows", "stages", "tasks", "params.yaml"):
        (folder / name).symlink_to(REPOSITORY / name)
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return Settings(folder, {**environ, "CUDA_VISIBLE_DEVICES": ""})


@cache
def _empty_mlflow_database() -> bytes:
    with TemporaryDirectory() as folder:
        settings = Settings(Path(folder), {})
        assert MlflowStore(settings).client  # makes the database
        return (settings.mlruns / "mlflow.db").read_bytes()


def prepare_mlflow(settings: Settings) -> None:
    """Gives a checkout an empty MLflow database; MLflow itself takes a second to make one."""
    settings.mlruns.mkdir(exist_ok=True)
    (settings.mlruns / "mlflow.db").write_bytes(_empty_mlflow_database())


def know_judge(settings: Settings, judge: JudgeParams) -> None:
    """Adds a judge to the params.yaml of a checkout, which becomes its own file: no other judge is asked."""
    place = settings.root / "params.yaml"
    values = yaml.safe_load(place.read_text(encoding="utf-8"))
    known = judge.model_dump(mode="json", exclude_defaults=True, exclude={"name", "annotator_digest"})
    values.setdefault("judges", {})[judge.name or "of-the-test"] = known
    place.unlink()
    place.write_text(yaml.safe_dump(values), encoding="utf-8")


def spec(**changes: Any) -> RunSpec:
    values: dict[str, Any] = {
        "run_id": "gsm8k-test-1", "suite": "tests", "task": "gsm8k", "variant": "mini", "agent": "noop", "driver": None,
        "mode": "free", "model": "small", "protocol": "strict", "seed": 0, "budget_s": 600.0, "max_submissions": None,
        "source": None, "backend": "transformers", "exact": False, "options": {}, "split_seed": 7, "grading_port": 0,
        "sandbox": "none",
        "statistics": STATISTICS,
        "git_commit": "", "versions": {"a2rl": __version__}, "created_at": "2026-04-12T09:30:15+0000",
    }  # fmt: skip
    return RunSpec(**values | changes)


def make_hidden(folder: Path, items: int = 8) -> Path:
    folder.mkdir(parents=True)
    rows = [{"question": f"What is {n} + {n}?", "answer": f"{n}+{n}={2 * n}\n#### {2 * n}"} for n in range(items)]
    write_jsonl(folder / "eval.jsonl", rows)
    write_jsonl(folder / "shots.jsonl", [])
    return folder


def item_results(ids: Sequence[str], right: int) -> tuple[ItemResult, ...]:
    """Returns results in which the first `right` items are correct."""
    return tuple(
        ItemResult(
            id=each, verdict="correct" if place < right else "wrong", value=float(place < right), answer="#### 1"
        )
        for place, each in enumerate(ids)
    )


def grade_result(items: Sequence[ItemResult], seconds: float) -> GradeResult:
    """Returns the result of grading that took this many seconds; the score is the mean of the items."""
    return GradeResult(score=summarise(items, seconds), items=tuple(items))


def grade_job_in(folder: Path, **changes: Any) -> GradeJob:
    """Returns a job whose hidden data, model, result and log are in a folder, unless others are given."""
    values: dict[str, Any] = {
        "root": REPOSITORY, "task": "gsm8k", "variant": "mini", "hidden": folder, "model": folder, "split": "all",
        "split_seed": 0, "options": {}, "result": folder / "graded.json", "log": folder / "log",
    }  # fmt: skip
    return GradeJob(**values | changes)


def make_run(
    settings: Settings, base_model: Path, items: int = 8, started: bool = True, movable: bool = False, **changes: Any
) -> RunDir:
    """Makes a run after setup and baseline (2 correct items in each half).

    With `started`, its agent is working; if it is `movable`, a copy of its checkout is complete.
    """
    if isinstance(judge := changes.get("judge"), JudgeParams):
        know_judge(settings, judge)
    run = RunDir.create(settings.runs, spec(**changes))
    hidden = make_hidden(settings.root / "data-of" / run.id / "hidden", items)
    for name in ("code", "output", "data"):
        (run.workspace / name).mkdir(parents=True)
    (run.given / "data").mkdir(parents=True)
    digest, data_digest = model_digest(base_model), hidden_digest(hidden.parent)
    run.write(
        "setup",
        SetupRecord(
            seconds=0,
            base_model=place_in(settings.root, base_model) if movable else base_model,
            model_digest=digest,
            small_files_digest=folder_digest(base_model, SMALL_FILES),
            hidden=place_in(settings.root, hidden) if movable else hidden,
            data_digest=data_digest,
            eval_items=items,
            sandbox=NONE,
        ),
    )
    run.clock.create(run.spec.budget_s, refunds=run.spec.protocol == "strict")
    run.ledger.append(
        RunOpened(
            spec_digest=digest_of(run.spec.model_dump(mode="json")),
            model_digest=digest,
            data_digest=data_digest,
        )
    )
    _know_baseline(run, hidden)
    if started:
        run.clock.start()
        run.ledger.append(AgentStarted(attempt=1, elapsed_s=0.0))
    return run


def _know_baseline(run: RunDir, hidden: Path) -> None:
    halves = {
        split: item_results(ids_of_run(run.spec, hidden, split), 2)
        for split in cast(tuple[Split, ...], ("public", "private"))
    }
    known = {item.id: item for half in halves.values() for item in half}
    items = tuple(known[each] for each in ids_of_run(run.spec, hidden, "all"))
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
            items_digest=file_digest(run.baseline_items),
        )
    )


def end_agent(run: RunDir) -> None:
    """Records that the agent finished by itself after nine seconds, with all of its submissions graded."""
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
        refused=sum(event.count for event in run.ledger.events(SubmissionRefused)),
    )
    run.write("execute", record)


def right_answers(model: Path, items: int) -> int:
    """Returns how many answers the fake grader counts as correct; it depends only on the weights."""
    return int(weights_digest(model)[:8], 16) % (items + 1)


class FakePool:
    """A fake pool that grades by the weights' digest, at once or when told to, and counts its jobs."""

    def __init__(self, at_once: bool = True, failure: str = "") -> None:
        self.jobs: list[GradeJob] = []
        self.asked_for: list[frozenset[str]] = []
        """The devices that each job was submitted for."""
        self._at_once = at_once
        self.failure = failure
        self._waiting: list[tuple[GradeJob, Future[GradeResult]]] = []

    def submit(self, job: GradeJob, on: Iterable[str] = ()) -> "Future[GradeResult]":
        future: Future[GradeResult] = Future()
        self.jobs.append(job)
        self.asked_for.append(frozenset(on))
        self._waiting.append((job, future))
        if self._at_once:
            self.grade_all()
        return future

    def grade_all(self) -> None:
        while self._waiting:
            job, future = self._waiting.pop(0)
            if self.failure:
                future.set_exception(GradingError(self.failure, 0.0))
                continue
            ids = ids_of_job(job)
            result = grade_result(item_results(ids, right_answers(job.model, len(ids))), 0.5)
            write_model(job.result, result)
            future.set_result(result)


class Finished(NamedTuple):
    """A checkout with one finished run, mirrored in MLflow."""

    run: RunDir
    settings: Settings


def copy_of(finished: Finished, folder: Path) -> Finished:
    """Returns a copy of the run below a folder, for a test to change, with the settings of the original."""
    root = shutil.copytree(finished.run.root, folder / "runs" / finished.run.id, symlinks=True)
    return Finished(RunDir(root), finished.settings)


def worker_pids(pool: GraderPool) -> list[int]:
    """Returns the process ids of a pool's running workers."""
    return [slot._worker.pid for slot in pool._slots if slot._worker.is_alive]


def submit_checkpoint(service: GradingService, model_path: str) -> PendingSubmission:
    """Does all of a service's work on a submission in this thread, up to the pool."""
    pending = service.submissions.receive(SubmitRequest(model_path))
    service.work(pending)
    return pending


def finish(run: RunDir, settings: Settings, base_model: Path, judged: bool = True) -> None:
    """Finishes a run with three submissions, which a fake grader grades; unless `judged`, it ends with the grade."""
    service = GradingService(run, cast(GraderPool, FakePool()))
    for seed in (1, 2, 3):
        trained_copy(base_model, run.workspace / "output" / f"v{seed}", seed)
        submit_checkpoint(service, f"output/v{seed}")
    end_agent(run)
    if run.spec.protocol == "strict":
        grade_private(run)
    grade(run, settings)
    if judged:
        judge_and_close(run, settings)


def judge_and_close(run: RunDir, settings: Settings) -> None:
    """Does what is left of a run that has a grade record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.validity.run_checks_apart", run_checks)  # a process of its own takes a second to start
        validity(run, settings)
    write_report(run, settings)  # the stage would also start a process for the labels
    run.write("report", ReportRecord(seconds=0, path=run.report))
    close_run(run)
    Tracker(settings).sync(run)


def grade_private(run: RunDir) -> None:
    """Writes the private grade to where the stage reads it, so that no real grader is needed."""
    best = best_submission(run.ledger)
    assert best is not None
    ids = ids_of_run(run.spec, hidden_of(run), "private")
    result = grade_result(item_results(ids, 3), 0.5)
    write_model(run.items(best.submission.weights_digest, "private"), result)


def finished_run(folder: Path, in_full: bool = False, judged: bool = True, **changes: Any) -> Finished:
    """Makes a checkout with a finished run; `in_full`, its agent also wrote code and a log, and was refused once.

    Unless `judged`, the stages after the grade are still to come.
    """
    folder.mkdir()
    settings = checkout(folder)
    base_model = build_base_model(folder / "models" / "small")
    prepare_mlflow(settings)
    run = make_run(settings, base_model, movable=in_full, **changes)
    if in_full:
        (run.workspace / "code" / "train.py").write_text("print(1)\n")
        (run.logs / "agent.log").write_text("step 1\nstep 2\n")
        (run.workspace / "summary.md").write_text("It went well.\n")
        keep_summary(run)
        GradingService(run, cast(GraderPool, FakePool())).submissions.refuse_unreceived("output/v0", "not a folder")
    finish(run, settings, base_model, judged)
    return Finished(run, settings)


def write_outputs(result: Path, answer: str) -> None:
    """Writes the outputs that belong to a result; every item has the same prompt and answer."""
    turn = Turn(prompt="1 + 1?", is_whole=True, answer=answer, finish="stop", prompt_tokens=9, tokens=5)
    outputs = [Output(item=item.id, turns=(turn,)) for item in read_model(result, GradeResult).items]
    text = "".join(each.model_dump_json() + "\n" for each in outputs)
    outputs_path(result).write_bytes(gzip.compress(text.encode()))


def wait_for(condition: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
    """Waits until the condition is true; returns its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return value


FIRST_THREAD_ENDS = """
import ctypes, sys, threading, time
opened = [open(name) for name in sys.argv[1:]]
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""A program that goes on in another thread; for the kernel, it is a zombie."""


def alive(pid: int) -> bool:
    """Returns whether a process exists and is not a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
