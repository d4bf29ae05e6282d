"""A SLURM cluster of one machine with fake GPUs, as processes of this machine, for the slow tests.

with running_slurm(folder, gpus=4) as slurm:
    job = slurm.submit(Path("deploy/slurm/worker.sbatch"), "--array=1-4")
    slurm.wait(job)
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
START_S, STOP_S = 60.0, 20.0
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=2
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory={mib} Gres=gpu:{gpus}
PartitionName=tests Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
"""SLURM wants a device file for each GPU, and never opens it."""
CPUS_PER_GPU, MIB_PER_GPU = 16, 128_000
"""What a machine of this kind would have: the fake node says that it has as much."""


class Slurm:
    """A running cluster."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self._folder = folder
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        host = socket.gethostname().split(".")[0]
        text = CONFIGURATION.format(
            host=host, user=getpass.getuser(), folder=folder, ports=_two_free_ports(), gpus=gpus,
            cpus=gpus * CPUS_PER_GPU, mib=gpus * MIB_PER_GPU,
        )  # fmt: skip
        (folder / "slurm.conf").write_text(text)
        lines = [f"Name=gpu File={device} Flags=nvidia_gpu_env\n" for device in DEVICES[:gpus]]
        (folder / "gres.conf").write_text("".join(lines))
        self._environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts the daemons, and waits until the node takes jobs."""
        for daemon in ("slurmctld", "slurmd"):
            with (self._folder / f"{daemon}.log").open("wb") as log:
                command = [_found(daemon) or daemon, "-D"]
                self._daemons.append(
                    subprocess.Popen(command, env=self._environ, stdout=log, stderr=log, start_new_session=True)
                )
        end = time.monotonic() + START_S
        while "State=IDLE" not in self._call("scontrol", "show", "node", check=False):
            assert time.monotonic() < end, self._logs()
            time.sleep(0.5)

    def submit(self, script: Path, *options: str, **variables: str) -> str:
        """Submits a batch script with some environment variables; returns the id of the job or of its array."""
        output = self._folder / "job-%a.log"
        exported = ",".join(["ALL", *(f"{name}={text}" for name, text in variables.items())])
        command = ("sbatch", "--parsable", f"--output={output}", f"--export={exported}", *options, str(script))
        return self._call(*command).strip()

    def wait(self, job: str, timeout_s: float) -> list[str]:
        """Waits for the end of an array; returns what each of its jobs has written."""
        end = time.monotonic() + timeout_s
        while self._call("squeue", "--noheader", "--jobs", job, check=False).strip():
            assert time.monotonic() < end, self._logs()
            time.sleep(1.0)
        return [path.read_text() for path in sorted(self._folder.glob("job-*.log"))]

    def stop(self) -> None:
        """Ends all jobs and the daemons."""
        self._call("scancel", "--user", getpass.getuser(), check=False)
        for process in reversed(self._daemons):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _call(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr}{self._logs()}"
        return done.stdout

    def _logs(self) -> str:
        return "".join(path.read_text()[-3000:] for path in sorted(self._folder.glob("*.log")))


@contextmanager
def running_slurm(folder: Path, gpus: int) -> Iterator[Slurm]:
    """Runs a cluster within the context; the test is skipped if SLURM is not installed."""
    if missing := [program for program in PROGRAMS if _found(program) is None]:
        pytest.skip(f"SLURM is not installed: {', '.join(missing)}")
    slurm = Slurm(folder, gpus)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


def _found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")


def _two_free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
