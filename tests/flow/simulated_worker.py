"""A worker for tests: takes open runs one after the other and does a stand-in for their work, until all are done.

python -m tests.flow.simulated_worker CHECKOUT STORE CLAIMS ACKNOWLEDGED
"""

import os
import random
import secrets
import sys
import time
from pathlib import Path

from a2rl.cluster.claims import RunRow
from a2rl.cluster.holding import Cluster, held
from a2rl.cluster.postgres_claims import PostgresClaims
from a2rl.cluster.store import ObjectStore
from a2rl.core.errors import A2rlError
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
from a2rl.run.failure import failed
from a2rl.run.records import ReportRecord
from a2rl.run.stored import is_safe

STEPS, LEASE_S = 6, 8.0


def work(run: RunDir, acknowledged: Path) -> None:
    """Makes entries and checkpoints up to the last step, and notes each entry once it is safe."""
    while (step := len(run.ledger.events(RunInterrupted))) < STEPS:
        folder = run.checkpoints / secrets.token_hex(8)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(os.urandom(10_000))
        token = f"{run.id} {step} {folder.name}"
        entry = run.ledger.append(RunInterrupted(stage=token))
        deadline = time.monotonic() + 60
        while not is_safe(run, entry.seq) and time.monotonic() < deadline:
            time.sleep(0.05)
        if is_safe(run, entry.seq):
            with acknowledged.open("a") as file:
                file.write(token + "\n")
    run.write("grade", failed(run, "it was simulated"))
    run.write("report", ReportRecord(seconds=0, path=run.report))


def choose(cluster: Cluster) -> RunRow | None:
    """Returns a run that nobody works on; None if there is none now."""
    free = [row for row in cluster.claims.rows("simulated") if not row.done and not row.live]
    return random.choice(free) if free else None


def main() -> None:
    """Works until all runs are done."""
    settings = Settings.load(Path(sys.argv[1]))
    cluster = Cluster(ObjectStore(sys.argv[2]), PostgresClaims(sys.argv[3], LEASE_S))
    while not all(row.done for row in cluster.claims.rows("simulated")):
        if (row := choose(cluster)) is None:
            time.sleep(0.3)
            continue
        run = RunDir(settings.runs / row.run_id)
        try:
            with held(run, settings, lambda: os._exit(75), cluster):
                work(run, Path(sys.argv[4]))
        except A2rlError as error:  # another worker was faster, or a service is down
            sys.stderr.write(f"{error}\n")
            time.sleep(0.3)


if __name__ == "__main__":
    main()
