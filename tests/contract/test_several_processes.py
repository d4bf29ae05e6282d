"""Tests that training with several processes works in the sandbox: torchrun, gloo, and the socket that NCCL opens."""

import sys
from pathlib import Path

import pytest

from a2rl.core.settings import Settings
from a2rl.linux import landlock
from a2rl.sandbox.selection import select_sandbox, try_in_sandbox

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")]
TIMEOUT_S = 300
TRAINS = """
import os, socket
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as as_nccl_does:
    as_nccl_does.bind(f"\\0tmp/nccl-socket-{rank}-{os.getppid():x}")
    model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.5, 1.5]], model.module.weight.grad
torch.distributed.destroy_process_group()
"""


def test_two_processes_train_together(tmp_path: Path, settings: Settings) -> None:
    program = tmp_path / "trains.py"
    program.write_text(TRAINS)
    isolation = select_sandbox("landlock", settings)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    ended = try_in_sandbox(command, isolation, settings, read=(program,), timeout_s=TIMEOUT_S)
    assert ended.ok, ended.output
