"""A worker for tests: takes flow runs from a pool and does a stand-in for their work, until all runs are done.

The claim, the ledger, the copy and the states of the flow runs are real; the stages and the agent are not.

python -m tests.flow.simulated_worker CHECKOUT STORE CLAIMS ACKNOWLEDGED
"""

import os
import secrets
import sys
import time
from pathlib import Path

from prefect.states import Completed, Failed, Running

from a2rl.cluster.copies import ObjectStore
from a2rl.cluster.holding import Cluster, held
from a2rl.cluster.postgres_claims import PostgresClaims
from a2rl.core.errors import A2rlError
from a2rl.core.settings import Settings
from a2rl.results.manifest import close_run
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
from a2rl.run.failure import failed
from a2rl.run.names import stored_entries
from a2rl.validity.record import decide
from flows.submission import prefect_client, take_flow_run

STEPS, LEASE_S, POOL, SUITE = 6, 8.0, "simulated", "simulated"
EXIT_LOST = 75


def work(run: RunDir, acknowledged: Path) -> None:
    """Makes entries and checkpoints up to the last step, and notes each entry once it is safe."""
    while (step := len(run.ledger.events(RunInterrupted))) < STEPS:
        folder = run.checkpoints / secrets.token_hex(8)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(os.urandom(10_000))
        token = f"{run.id} {step} {folder.name}"
        entry = run.ledger.append(RunInterrupted(stage=token))
        deadline = time.monotonic() + 60
        while entry not in stored_entries(run) and time.monotonic() < deadline:
            time.sleep(0.05)
        if entry in stored_entries(run):
            with acknowledged.open("a") as file:
                file.write(token + "\n")
    run.write("grade", failed(run, "it was simulated"))
    decide(run, [], 0.0)
    close_run(run)


def do_one(settings: Settings, cluster: Cluster, acknowledged: Path) -> None:
    """Takes one flow run and does its run; Prefect is told how it ended."""
    with prefect_client() as client:
        flow_run = take_flow_run(client, POOL)
        if flow_run is None:
            time.sleep(1.0)
            return
        client.set_flow_run_state(flow_run.id, Running())
        run = RunDir(settings.runs / flow_run.parameters["run_ids"][0])
        try:
            with held(run, settings, lambda: os._exit(EXIT_LOST), cluster):
                work(run, acknowledged)
        except A2rlError as error:  # another worker has it, or a service is down
            client.set_flow_run_state(flow_run.id, Failed(message=str(error)))
            raise
        client.set_flow_run_state(flow_run.id, Completed())


def main() -> None:
    """Works until all runs are done."""
    settings = Settings.load(Path(sys.argv[1]))
    cluster = Cluster(ObjectStore(sys.argv[2]), PostgresClaims(sys.argv[3], LEASE_S))
    while not all(row.done for row in cluster.claims.rows(SUITE)):
        try:
            do_one(settings, cluster, Path(sys.argv[4]))
        except A2rlError as error:
            sys.stderr.write(f"{error}\n")
            time.sleep(0.3)


if __name__ == "__main__":
    main()
