"""`python -m tests.mlflow_scale 50 40`: what mirroring so many runs of so many submissions costs, with a real server.

The first run is mirrored after each of its submissions, as while its agent works; the others at once, as after an
outage.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from a2rl.core.settings import Settings
from a2rl.results.mlflow.tracking import Tracker
from a2rl.run.directory import RunDir
from tests.mlflow_server import CountingProxy, mlflow_server
from tests.run_maker import checkout
from tests.simulated_runs import simulate_run
from tests.written_ledger import write_ledger


class Costs(NamedTuple):
    """What mirroring took."""

    live: list[int]
    """Requests after each submission of the first run: the first number is for its beginning, the last for its end."""
    others: list[int]
    """Requests for each other run, as a whole."""
    seconds: float
    """The time for these others."""


def measure(runs: int, submissions: int, folder: Path) -> Costs:
    """Mirrors so many simulated runs."""
    with mlflow_server(folder / "server") as url:
        proxy = CountingProxy(url)
        try:
            settings = checkout(folder)
            tracker = Tracker(Settings(folder, {**settings.environ, "MLFLOW_TRACKING_URI": proxy.url}))
            simulated = [simulate_run(settings, number, submissions=submissions) for number in range(runs)]
            live = _mirror_live(simulated[0], tracker, proxy)
            begun, others = time.perf_counter(), []
            for run in simulated[1:]:
                before = len(proxy.seen)
                tracker.sync(run)
                others.append(len(proxy.seen) - before)
            return Costs(live, others, time.perf_counter() - begun)
        finally:
            proxy.close()


def _mirror_live(run: RunDir, tracker: Tracker, proxy: CountingProxy) -> list[int]:
    """Lets the run happen again, and mirrors it after each grade; returns the requests."""
    events = [entry.event for entry in run.ledger.entries()]
    late = {path: path.read_bytes() for name in ("execute", "grade") if (path := run.record_path(name)).exists()}
    for path in (*late, run.ledger.path):
        path.unlink()
    requests = []
    for count, event in enumerate(events, 1):
        if event.kind not in ("agent_started", "graded") and count < len(events):
            continue
        run.ledger.path.unlink(missing_ok=True)
        write_ledger(run.ledger.path, events[:count])
        if count == len(events):
            for path, content in late.items():
                path.write_bytes(content)
        before = len(proxy.seen)
        tracker.sync(run)
        requests.append(len(proxy.seen) - before)
    return requests


def main() -> None:
    """Prints the costs."""
    runs, submissions = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        found = measure(runs, submissions, Path(folder))
    each = found.live[1:-1]
    lines = [
        f"requests for a run's beginning: {found.live[0]}, its end: {found.live[-1]}",
        f"requests for a submission, while the agent works: {min(each)} to {max(each)}",
        f"{len(found.others)} runs of {submissions} submissions at once: {found.seconds:.1f} s, "
        f"{sum(found.others) / max(1, len(found.others)):.0f} requests each",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
