"""Four slots work through many runs on one machine with four (fake) GPUs, each slot a process."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from a2rl.cluster.holding import Cluster, new_run
from a2rl.core.files import write_model
from a2rl.core.settings import Settings
from tests.fake_gpus import FakeGpus
from tests.run_maker import REPOSITORY, spec

GPUS, RUNS = 4, 100
SLOT = """
import os, sys, time
from pathlib import Path
from a2rl.cluster.holding import Cluster, held
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.results.manifest import close_run
from a2rl.run.directory import RunDir
from a2rl.run.failure import failed
from a2rl.run.gpu_share import allocated_gpus
from a2rl.validity.record import decide
settings = Settings.load()
used, cluster = Path(sys.argv[1]), Cluster.needed(settings)
while free := [row for row in cluster.claims.rows() if not row.done and not row.live]:
    run = RunDir(settings.runs / free[int(sys.argv[2]) % len(free)].run_id)
    try:
        with held(run, settings), allocated_gpus(run, settings) as share:
            [gpu] = share.agent
            mark = used / gpu.uuid
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))     # fails if another run has the device
            time.sleep(0.3)
            with (used / "log").open("a") as log:
                log.write(f"{run.id} {gpu.uuid}\\n")
            mark.unlink()
            run.write("grade", failed(run, "no agent"))
            decide(run, [], 0.0)
            close_run(run)
    except UsageError:
        continue                                                # another slot was faster
"""


@pytest.mark.slow
@pytest.mark.parametrize("visible", [("0", "1", "2", "3"), (None,) * 4], ids=["one GPU for each slot", "all for all"])
def test_no_device_is_held_by_two_runs_and_each_run_is_done_once(
    settings: Settings, tmp_path: Path, visible: tuple[str | None, ...]
) -> None:
    gpus, used = FakeGpus(settings.root, GPUS), tmp_path / "used"
    used.mkdir()
    shared = {"A2RL_STORE": f"file://{tmp_path}/store", "A2RL_ROOT": str(settings.root)}
    cluster = Cluster.needed(Settings(settings.root, shared))
    specs = [spec(run_id=f"gsm8k-slot-{number:03}", gpus_per_run=1) for number in range(RUNS)]
    for each in specs:
        write_model(settings.runs / each.run_id / "spec.json", each)
    cluster.claims.register([new_run(each) for each in specs])
    slots = []
    for number, named in enumerate(visible):
        path = f"{settings.root}:{REPOSITORY}"
        environ = gpus.seen_by(settings, named).environ | shared | {"PYTHONPATH": path}
        command = [sys.executable, "-c", SLOT, str(used), str(number * RUNS // GPUS)]
        slots.append(subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True))
    for slot in slots:
        assert slot.communicate(timeout=500)[1].count("Traceback") == 0
        assert slot.returncode == 0
    lines = [line.split() for line in (used / "log").read_text().splitlines()]
    assert sorted(run for run, _ in lines) == [each.run_id for each in specs]
    assert set(Counter(uuid for _, uuid in lines)) == {gpus.uuid(index) for index in range(GPUS)}
