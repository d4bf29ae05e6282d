"""Grading: batches, warm workers, kept engines, answers that are programs."""

import subprocess
import sys
import time
from pathlib import Path

from a2rl.code_execution.pool import CodeCase, CodePool
from a2rl.core.settings import Settings
from a2rl.grading.devices import devices_of
from a2rl.grading.job import GradeJob
from a2rl.grading.pool import GraderPool
from a2rl.linux.gpus import usable_gpus
from a2rl.models.base_model import resolve_model
from a2rl.sampling.engine_params import VllmParams
from a2rl.task_api.contract import Variant
from a2rl.task_api.data import ensure_data
from tasks.humaneval.grade import published_items
from tasks.humaneval.program import program
from tests.bench.measured import Row, mirror_of, seconds
from tests.run_maker import grade_job_in

ITEMS = 200
ANSWERS = 8
"""To each problem of humaneval."""


def workers(settings: Settings, folder: Path) -> list[Row]:
    """Compares batches with single prompts, and a warm worker with a cold one."""
    cold_s = seconds(lambda: _grade_in_new_pool(settings, _job(settings, folder, "cold")))
    with GraderPool(settings, devices_of(usable_gpus(settings).gpus)[:1]) as pool:
        batched = pool.submit(_job(settings, folder, "first")).result().score
        warm_s = seconds(lambda: pool.submit(_job(settings, folder, "warm")).result())
        exact = pool.submit(_job(settings, folder, "exact", exact=True)).result().score
    return [
        Row(f"answering {ITEMS} items: one prompt at a time / batched", f"{exact.seconds / batched.seconds:.1f}x"),
        Row(
            f"grading {ITEMS} items: new worker / warm worker",
            f"{cold_s / warm_s:.1f}x ({cold_s:.1f} s, {warm_s:.1f} s)",
        ),
    ]


def kept_engine(settings: Settings, folder: Path) -> list[Row]:
    """Compares an engine of vLLM that takes other weights with one that is started anew; nothing without vLLM."""
    if not settings.vllm_python.is_file():
        return []
    starts = []
    with GraderPool(settings, devices_of(usable_gpus(settings).gpus)[:1]) as pool:
        for name in ("cold-engine", "warm-engine"):
            work = _job(settings, folder, name).model_copy(update={"backend": "vllm", "vllm": VllmParams()})
            result = pool.submit(work).result()
            assert result.engine_start is not None
            starts.append(result.engine_start)
    cold, warm = starts
    assert (cold.kind, warm.kind) == ("cold", "warm"), warm.why
    ratio = cold.seconds / warm.seconds
    return [Row("vLLM: new engine / other weights", f"{ratio:.0f}x ({cold.seconds:.1f} s, {warm.seconds:.2f} s)")]


def code_answers(settings: Settings, folder: Path) -> list[Row]:
    """Compares testing answers in the sandbox with HumanEval's own way: a new interpreter for each answer."""
    mirror = mirror_of("humaneval", settings)
    variant: Variant = "full" if mirror else "mini"
    hidden = ensure_data("humaneval", variant, mirror, settings) / "hidden"
    items = published_items(hidden)
    cases = ANSWERS * [
        CodeCase(
            program(each.prompt, each.entry_point, each.canonical_solution), each.entry_point, each.prompt, each.test
        )
        for each in items
    ]
    plain = [f"{case.program}\n{case.test}\ncheck({case.entry_point})\n" for case in cases]
    one_by_one_s = seconds(
        lambda: [subprocess.run([sys.executable, "-c", text], check=True, capture_output=True) for text in plain]
    )
    started = time.perf_counter()
    with CodePool() as pool:
        outcomes = pool.test(cases)
    pool_s = time.perf_counter() - started
    assert all(outcome.passed for outcome in outcomes)
    return [
        Row(
            f"humaneval ({variant}): {len(items)} problems x {ANSWERS} answers, one subprocess at a time / in the pool",
            f"{one_by_one_s / pool_s:.1f}x ({one_by_one_s:.0f} s, {pool_s:.1f} s)",
        )
    ]


def _job(settings: Settings, folder: Path, name: str, exact: bool = False) -> GradeJob:
    data = ensure_data("gsm8k", "mini", None, settings)
    return grade_job_in(
        folder, root=settings.root, hidden=data / "hidden", model=resolve_model("tiny", settings), limit=ITEMS,
        exact=exact, result=folder / f"{name}.json",
    )  # fmt: skip


def _grade_in_new_pool(settings: Settings, work: GradeJob) -> None:
    with GraderPool(settings, devices_of(usable_gpus(settings).gpus)[:1]) as pool:
        pool.submit(work).result()
