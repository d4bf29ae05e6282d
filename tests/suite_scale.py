"""`python -m tests.suite_scale 2000 40`: what the report over so many simulated runs costs, with so many submissions
each, and what it costs again after one more run."""

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from a2rl.core.settings import Settings
from a2rl.results.suite.files import runs_of, write_suite_report
from tests.run_maker import checkout
from tests.simulated_runs import STACKS, TASKS, simulate_run, simulate_suite


class Cost(NamedTuple):
    """What some work took, in this process."""

    wall_s: float
    cpu_s: float


class Scale(NamedTuple):
    """The costs of the report."""

    first: Cost
    """With no run known from before."""
    one_more: Cost
    peak_mib: float


def measure(runs: int, submissions: int) -> Scale:
    """Simulates the runs, and measures the report over them."""
    with tempfile.TemporaryDirectory() as folder:
        settings = checkout(Path(folder))
        simulate_suite(settings, runs, submissions)
        first = _cost_of_report(settings)
        agent, driver = STACKS[0]
        simulate_run(settings, runs, submissions=submissions, task=TASKS[0], agent=agent, driver=driver, seed=runs)
        one_more = _cost_of_report(settings)
    return Scale(first, one_more, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _cost_of_report(settings: Settings) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    write_suite_report("scale", runs_of(["tests"], settings), settings)
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def main() -> None:
    """Prints the costs."""
    runs, submissions = int(sys.argv[1]), int(sys.argv[2])
    found = measure(runs, submissions)
    lines = [
        f"report over {runs:,} runs of {submissions} submissions: {_shown(found.first)}",
        f"the same after one more run: {_shown(found.one_more)}",
        f"peak memory: {found.peak_mib:.0f} MiB",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _shown(cost: Cost) -> str:
    return f"{cost.wall_s:.1f} s ({cost.cpu_s:.1f} s of CPU time)"


if __name__ == "__main__":
    main()
