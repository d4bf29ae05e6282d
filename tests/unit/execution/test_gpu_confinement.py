"""Tests which GPUs an agent sees: its variables, its device files, and what the grading API says."""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from a2rl.agent_systems.definition import find_agent
from a2rl.core.settings import Settings
from a2rl.execution import command
from a2rl.execution.command import confinement_of
from a2rl.execution.workspace import agent_environment
from a2rl.grading.answers import run_meta
from a2rl.grading.grades import grade_job
from a2rl.linux.gpus import driver_nodes
from a2rl.run.directory import RunDir
from a2rl.run.gpu_share import allocated_gpus
from a2rl.run.records import SetupRecord
from a2rl.sampling.engine_params import EngineMemory
from a2rl.sandbox.command import AgentCommand
from a2rl.sandbox.policy import workspace_confinement
from a2rl.sandbox.process import AgentProcess
from a2rl.sandbox.selection import select_sandbox
from tests.fake_gpus import FakeGpus
from tests.run_maker import spec, wait_for

URL = "http://127.0.0.1:4242"


def new_run(settings: Settings, number: int, **changes: object) -> RunDir:
    run = RunDir.create(settings.runs, spec(run_id=f"gsm8k-test-{number}", model="m", **changes))
    for name in ("workspace/models", "given"):
        (run.root / name).mkdir(parents=True)
    return run


def test_eight_runs_on_eight_gpus_each_see_their_own(settings: Settings) -> None:
    fake = FakeGpus(settings.root, 8)
    seen = fake.seen_by(settings)
    agent = find_agent("noop", settings.root)
    runs = [new_run(settings, number, gpus_per_run=1, sandbox="landlock") for number in range(8)]
    with ExitStack() as held:
        for run in runs:
            held.enter_context(allocated_gpus(run, seen))
        environments = [agent_environment(run, agent, URL, seen) for run in runs]
    assert {each["CUDA_VISIBLE_DEVICES"] for each in environments} == {fake.uuid(index) for index in range(8)}
    assert all(each["NVIDIA_VISIBLE_DEVICES"] == each["CUDA_VISIBLE_DEVICES"] for each in environments)
    assert all(each["NCCL_CUMEM_ENABLE"] == "0" for each in environments)


def test_the_agent_never_sees_the_gpu_that_grades(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(settings.root, 2)
    seen, run = fake.seen_by(settings), new_run(settings, 1, gpus_per_run=1, grading_gpus=1)
    agent, isolation = find_agent("noop", settings.root), select_sandbox("landlock", settings)
    monkeypatch.setattr(command, "driver_nodes", lambda gpus: driver_nodes(gpus, Path("/nowhere")))
    with allocated_gpus(run, seen) as share:
        environment = agent_environment(run, agent, URL, seen)
        confined = confinement_of(run, agent, seen, isolation, connect=())
    assert confined is not None
    assert share.graders[0].uuid == fake.uuid(1)
    assert fake.uuid(1) not in " ".join(environment.values())
    assert "/dev/nvidia0" in confined.use
    assert "/dev/nvidia1" not in confined.use


def test_an_agent_without_gpus_sees_none_whatever_its_user_sees(settings: Settings) -> None:
    fake = FakeGpus(settings.root, 2)
    seen, run = fake.seen_by(settings, "0,1"), new_run(settings, 1, gpus_per_run=0)
    with allocated_gpus(run, seen):
        environment = agent_environment(run, find_agent("noop", settings.root), URL, seen)
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"


READ = """
import sys
for path in sys.argv[1:]:
    try:
        print(open(path).read())
    except OSError as error:
        print(error.strerror)
"""


def test_in_the_sandbox_only_its_own_device_file_can_be_opened(settings: Settings, tmp_path: Path) -> None:
    isolation = select_sandbox("landlock", settings)
    workspace = tmp_path / "workspace"
    nodes = [tmp_path / "dev" / f"nvidia{index}" for index in range(2)]
    for folder in (workspace, nodes[0].parent):
        folder.mkdir()
    for place, node in enumerate(nodes):
        node.write_text(f"device {place}")
    confined = workspace_confinement(
        workspace, isolation, settings, (), (), tmp_path / "network", gpus=(str(nodes[1]),)
    )
    assert confined is not None
    command = AgentCommand(
        [sys.executable, "-I", "-S", "-c", READ, *map(str, nodes)], str(workspace), {}, str(tmp_path / "log"), confined
    )
    with AgentProcess(command, settings) as process:
        assert wait_for(lambda: process.wait(1)).exit_code == 0
    assert (tmp_path / "log").read_text().splitlines() == ["Permission denied", "device 1"]


MEMORY = EngineMemory(
    context=8192, cache_tokens=65_536, answers=9, weights_bytes=14 << 30, cache_bytes=3 << 30, step_bytes=1 << 30
)


@pytest.mark.parametrize(("grading_gpus", "told"), [(0, 20.0), (1, None)])
def test_the_plan_of_setup_holds_for_all_grades_and_is_told(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path, grading_gpus: int, told: float | None
) -> None:
    run = new_run(backend="vllm", grading_gpus=grading_gpus)
    setup = run.need("setup", SetupRecord)
    run.write("setup", setup.model_copy(update={"memory": MEMORY}))
    assert grade_job(run, base_model, "all", run.grades / "any.json").memory == MEMORY
    assert json.loads(run_meta(run, {}))["grader_gib"] == told
