"""What is recorded and analysed: the agent's code, provenance, the report over many runs."""

import os
import resource
import subprocess
import time
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from a2rl.agent_systems.definition import Agent
from a2rl.contamination.text_search import TextSearch
from a2rl.core.settings import Settings
from a2rl.provenance.check import compare
from a2rl.recording.recorder import Recorder
from a2rl.results.suite.files import runs_of, write_suite_report
from a2rl.run.directory import RunDir
from tests.bench.measured import Row, processor_seconds
from tests.run_maker import checkout
from tests.simulated_runs import STACKS, TASKS, simulate_run, simulate_suite
from tests.stories import stories

PROVENANCE_MATRICES = 60
ROUNDS = 4
RECORDED_S = 60
SUITE_RUNS, SUITE_SUBMISSIONS = 2_000, 40


def recorder(settings: Settings, folder: Path) -> list[Row]:
    """Measures the cost of recording an agent that writes code and checkpoints all the time."""
    run = RunDir(folder / "recorded")
    for place in ("code/pkg", "output", ".home"):
        (run.workspace / place).mkdir(parents=True)
    run.logs.mkdir()
    run.clock.create(600.0, refunds=False)
    for number in range(200):
        (run.workspace / f"code/pkg/m{number}.py").write_text("x = 1\n" * 200)
        (run.workspace / f"output/f{number}.bin").write_bytes(bytes(1000))
    recording = Recorder(run, Agent(id="a", title="a", start=("true",)), os.getpid(), 1)
    started, before, number = time.monotonic(), _cpu_s(), 0
    while time.monotonic() - started < RECORDED_S:
        number += 1
        (run.workspace / "code/train.py").write_text(f"step = {number}\n")
        recording.look()
        time.sleep(0.5)
    used, passed = _cpu_s() - before, time.monotonic() - started
    count = ["git", "rev-list", "--count", "HEAD"]
    commits = subprocess.run(count, cwd=run.code, capture_output=True, text=True, check=True)
    return [Row("recorder: of one core, 200 files of code, changed all the time",
             f"{100 * used / passed:.1f}% ({commits.stdout.strip()} commits in {passed:.0f} s)")]  # fmt: skip


def _cpu_s() -> float:
    """Returns the CPU seconds of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def provenance(settings: Settings, folder: Path) -> list[Row]:
    """Compares saying where a checkpoint of 500 MB comes from with reading it, for a trained and for a foreign one."""
    rng = np.random.default_rng(0)
    names = [f"model.layers.{place}.mlp.up_proj.weight" for place in range(PROVENANCE_MATRICES)]
    base = {name: rng.standard_normal((1024, 2048), dtype=np.float32) for name in names}
    low = np.outer(rng.standard_normal(1024), rng.standard_normal(2048)).astype(np.float32)
    states = {
        "base": base,
        "trained": {name: weight + 0.01 * low for name, weight in base.items()},
        "foreign": {name: rng.standard_normal(weight.shape, dtype=np.float32) for name, weight in base.items()},
    }
    for name, state in states.items():
        (folder / name).mkdir(parents=True)
        save_file(state, folder / name / "model.safetensors")
    rows = []
    for name in ("trained", "foreign"):
        file = folder / name / "model.safetensors"
        read_s = min(processor_seconds(file.read_bytes) for _ in range(ROUNDS))
        work = partial(compare, folder / name, folder / "base", "digest")
        compare_s = min(processor_seconds(work) for _ in range(ROUNDS))
        assert compare(folder / name, folder / "base", "digest").kind == {"trained": "descendant"}.get(name, name)
        size = file.stat().st_size / 1e6
        ratio = f"{compare_s / read_s:.1f}x ({compare_s:.2f} s, {read_s:.2f} s)"
        rows.append(Row(f"provenance of a {name} checkpoint of {size:.0f} MB / reading it, processor time", ratio))
    return rows


def text_search(settings: Settings, folder: Path) -> list[Row]:
    """Compares preparing the search for eval items with four times as much training data."""
    items, few, many = (stories(count, seed=seed) for seed, count in enumerate((1_000, 2_000, 8_000)))
    texts = {str(place): text for place, text in enumerate(items)}
    few_s, many_s = (
        min(processor_seconds(partial(TextSearch, texts, known)) for _ in range(2)) for known in (few, many)
    )
    ratio = f"{many_s / few_s:.1f}x ({many_s:.1f} s, {few_s:.1f} s)"
    return [Row("preparing the search for eval items: 8,000 training texts / 2,000, processor time", ratio)]


def suite_report(settings: Settings, folder: Path) -> list[Row]:
    """Measures the report over many runs, and what one more run adds."""
    simulated = checkout(folder)
    simulate_suite(simulated, SUITE_RUNS, SUITE_SUBMISSIONS)
    all_s, all_cpu_s = _report_s(simulated)
    agent, driver = STACKS[0]
    simulate_run(
        simulated, SUITE_RUNS, submissions=SUITE_SUBMISSIONS, task=TASKS[0], agent=agent, driver=driver, seed=SUITE_RUNS
    )
    more_s, more_cpu_s = _report_s(simulated)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        Row(
            f"report over {SUITE_RUNS:,} runs of {SUITE_SUBMISSIONS} submissions; again after one more run",
            f"{all_s:.0f} s, {more_s:.1f} s ({all_cpu_s:.0f} s, {more_cpu_s:.1f} s of CPU time), {peak_mib:.0f} MiB",
        )
    ]


def _report_s(settings: Settings) -> tuple[float, float]:
    """Writes the report; returns how long that took, and the CPU seconds of this process."""
    started, cpu_s = time.perf_counter(), time.process_time()
    write_suite_report("scale", runs_of(["tests"], settings), settings)
    return time.perf_counter() - started, time.process_time() - cpu_s
