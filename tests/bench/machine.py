"""The sandbox and the tracer."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from a2rl.core.processes import OPENMP_SPIN_COUNT
from a2rl.core.settings import Settings
from a2rl.sandbox.command import AgentCommand, Confinement
from a2rl.sandbox.policy import workspace_confinement
from a2rl.sandbox.process import AgentProcess
from a2rl.sandbox.selection import select_sandbox
from a2rl.sandbox.users import assign_user
from tests.bench.measured import Row, seconds
from tests.labels.traced_programs import traced_environment

ROUNDS = 4
TRAINING = """
import time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(2)])
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(8, 32, 64)
def step():
    started = time.perf_counter()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - started
print(min(step() for _ in range(500)))
"""
"""Prints the time of its fastest step: the others were held up by somebody else."""


def isolation(settings: Settings, folder: Path) -> list[Row]:
    """Compares training and starting processes inside the sandbox with the same outside, in turn."""
    workspace, log = folder / "workspace", folder / "agent.log"
    workspace.mkdir()
    found = select_sandbox("landlock", settings)
    user = assign_user(workspace) if "user" in found.layers else 0
    confined = workspace_confinement(workspace, found, settings, (), (), folder / "network.jsonl", user)

    def run(confinement: Confinement | None, *command: str) -> str:
        log.unlink(missing_ok=True)
        environment = settings.forwarded(("PATH",)) | {"GOMP_SPINCOUNT": OPENMP_SPIN_COUNT}
        work = AgentCommand(list(command), str(workspace), environment, str(log), confinement)
        with AgentProcess(work, settings) as process:
            assert process.wait(600) is not None
        return log.read_text()

    train = (sys.executable, "-c", TRAINING)
    trained = [(float(run(confined, *train)), float(run(None, *train))) for _ in range(ROUNDS)]
    started = [(seconds(lambda: run(confined, "true")), seconds(lambda: run(None, "true"))) for _ in range(ROUNDS)]
    inside_s, outside_s = (min(each) for each in zip(*trained, strict=True))
    start_s, plain_s = (min(each) for each in zip(*started, strict=True))
    milliseconds = f"({1000 * inside_s:.1f} ms, {1000 * outside_s:.1f} ms)"
    return [
        Row(f"sandbox ({found}): a step of training, inside / outside", f"{inside_s / outside_s:.2f}x {milliseconds}"),
        Row("sandbox: starting an agent, inside - outside", f"{1000 * (start_s - plain_s):.0f} ms"),
    ]


def tracer(_: Settings, folder: Path) -> list[Row]:
    """Compares training and starting Python with the tracer and without it, in turn."""
    traced, plain = traced_environment(folder), {**os.environ, "PYTHONPATH": ""}

    def output(environment: Mapping[str, str], text: str) -> str:
        spin = {"GOMP_SPINCOUNT": OPENMP_SPIN_COUNT}
        return subprocess.run(
            [sys.executable, "-c", text], env={**environment, **spin}, capture_output=True, text=True, check=True
        ).stdout

    trained = [(float(output(traced, TRAINING)), float(output(plain, TRAINING))) for _ in range(ROUNDS)]
    started = [(seconds(lambda: output(traced, "")), seconds(lambda: output(plain, ""))) for _ in range(5 * ROUNDS)]
    traced_s, plain_s = (min(each) for each in zip(*trained, strict=True))
    start_s, plain_start_s = (min(each) for each in zip(*started, strict=True))
    figures = f"{plain_s / traced_s:.3f}x ({1000 * traced_s:.3f} ms, {1000 * plain_s:.3f} ms)"
    return [
        Row("tracer: steps of training a second, with / without", figures),
        Row("tracer: starting Python, with - without", f"{1000 * (start_s - plain_start_s):.1f} ms"),
    ]
