"""An array job of a real SLURM, with `deploy/slurm/worker.sbatch` as it is: each job does one run on its own GPU.

The GPUs, and the engine that would compute on them, are fakes; SLURM, the services, the workers and the runs are not.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest

from a2rl.run.directory import RunDir
from a2rl.run.events import AgentConfined
from a2rl.run.gpu_share import allocation_of
from tests.fake_engine import FakeEngine
from tests.fake_gpus import FakeGpus, make_libcuda
from tests.flow.machines import kill_machine, machines_with_services
from tests.run_maker import REPOSITORY
from tests.slurm import running_slurm

JOBS, POOL = 4, "slurm"
WAIT_S = 900
BARE_PYTHON = f"{sys.base_prefix}/bin/python3"
OWN_LOCKS = 'A2RL_GPU_LOCKS="$A2RL_GPU_LOCKS/$SLURM_ARRAY_TASK_ID"'
"""With common locks, jobs that ignored what SLURM gave them would get different GPUs all the same."""
NOTE = 'echo "job $SLURM_ARRAY_TASK_ID has GPU $CUDA_VISIBLE_DEVICES"'


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_four_jobs_of_an_array_do_four_runs_on_their_own_gpus(tmp_path: Path) -> None:
    with (
        running_slurm(tmp_path / "slurm", gpus=JOBS) as slurm,
        machines_with_services(tmp_path / "machines") as machines,
    ):
        checkout, engine = machines.one, FakeEngine(tmp_path / "engine")
        gpus = FakeGpus(checkout.root, JOBS)
        checkout.variables |= gpus.environment | {"A2RL_VLLM_PYTHON": str(engine.python)}
        checkout.variables["LD_LIBRARY_PATH"] = str(make_libcuda(tmp_path / "libcuda"))
        (checkout.root / ".venv").symlink_to(sys.prefix)
        start = Path(machines.agent)
        start.write_text(start.read_text().replace("exec python", f"exec {sys.executable}"))
        # The agent's Python has no torch: ours is a build without CUDA, with which the workers take no run.
        options = ("--backend", "vllm", "--gpus-per-run", "1", "--sandbox", "none", "--python", BARE_PYTHON)
        ids = machines.submit(POOL, *range(JOBS), options=options)
        worker_env = tmp_path / "worker.env"
        shared = {name: checkout.environment[name] for name in (*checkout.variables, "PYTHONPATH")}
        lines = [f"{name}={shlex.quote(text)}" for name, text in shared.items()]
        worker_env.write_text("\n".join([*lines, OWN_LOCKS, NOTE, ""]))
        try:
            job = slurm.submit(
                REPOSITORY / "deploy" / "slurm" / "worker.sbatch",
                f"--array=1-{JOBS}",
                A2RL_ROOT=str(checkout.root),
                A2RL_WORKER_ENV=str(worker_env),
                A2RL_POOL=POOL,
            )
            said = slurm.wait(job, WAIT_S)
        finally:
            kill_machine(checkout)
        found = {}
        for text in said:
            given, taken = re.search(r"has GPU (\d+)", text), re.search(r"takes (\S+)/1", text)
            assert given is not None, text
            assert taken is not None, text
            found[taken[1]] = gpus.uuid(int(given[1]))
        assert sorted(found) == sorted(ids)
        assert len(found) == len(set(found.values())) == JOBS
        for run_id, uuid in found.items():
            run, row = RunDir(checkout.root / "runs" / run_id), machines.row(run_id)
            assert (row.done, row.epoch, row.attempt) == (True, 1, 1), said
            share = allocation_of(run)
            assert share is not None
            assert [gpu.uuid for gpu in share.all] == [uuid]
            assert {event.gpus for event in run.ledger.events(AgentConfined)} == {(uuid,)}
            assert checkout.problems(run_id) == []
        assert {start.gpus for start in engine.starts()} == set(found.values())
