"""Tests runs side by side on fake GPUs, with real agents in real sandboxes: each agent sees its own GPUs only."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentConfined
from a2rl.run.gpu_share import GpuShare, allocated_gpus
from stages import execute as stage
from stages.execute import execute
from tests.contract.test_llm_agents import FakeServiceProcess
from tests.fake_gpus import FakeGpus
from tests.run_maker import make_run

AGENT = """
env > output/environment
date +%s.%N > output/times
sleep 0.5
date +%s.%N >> output/times
"""


class Seen(NamedTuple):
    """What an agent saw, and when."""

    run: RunDir
    share: GpuShare
    environment: str
    began: float
    ended: float


@pytest.mark.parametrize(
    ("runs", "gpus", "grading"),
    [
        pytest.param(8, 8, 0, id="eight runs on eight GPUs", marks=pytest.mark.slow),
        pytest.param(4, 2, 0, id="four runs on two GPUs", marks=pytest.mark.slow),
        pytest.param(4, 5, 1, id="four runs on five GPUs, of which one grades for all of them"),
    ],
)
def test_each_agent_sees_its_own_gpus_and_never_the_graders(
    settings: Settings, base_model: Path, monkeypatch: pytest.MonkeyPatch, runs: int, gpus: int, grading: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(stage, "ServiceProcess", FakeServiceProcess)
    fake = FakeGpus(settings.root, gpus)
    seen_by_runs = fake.seen_by(settings)
    script = settings.root / "mine" / "start.sh"
    script.parent.mkdir()
    script.write_text(AGENT)

    def make(number: int) -> RunDir:
        run = make_run(
            settings, base_model, started=False, run_id=f"gsm8k-test-{number}", agent=str(script), model="m",
            gpus_per_run=1, grading_gpus=grading, side_by_side=runs,
        )  # fmt: skip
        for name in (".home", ".tmp"):
            (run.workspace / name).mkdir()
        return run

    there_is_one_for_each = runs + grading <= gpus
    all_have_theirs = threading.Barrier(runs if there_is_one_for_each else 1)

    def work(run: RunDir) -> Seen:
        with allocated_gpus(run, seen_by_runs) as share:
            all_have_theirs.wait(60)  # else an agent could end, and free its GPU, before another begins
            assert execute(run, seen_by_runs).ended == "finished"
        output = run.workspace / "output"
        began, ended = (float(line) for line in (output / "times").read_text().split())
        return Seen(run, share, (output / "environment").read_text(), began, ended)

    made = [make(number) for number in range(runs)]
    with ThreadPoolExecutor(runs) as threads:
        seen = list(threads.map(work, made))
    for each in seen:
        [mine] = each.share.agent
        assert f"CUDA_VISIBLE_DEVICES={mine.uuid}\n" in each.environment
        assert [event.gpus for event in each.run.ledger.events(AgentConfined)] == [(mine.uuid,)]
        assert len(each.share.grading) == grading
        assert [uuid for uuid in map(fake.uuid, range(gpus)) if uuid in each.environment] == [mine.uuid]
    at_once = [(one, other) for one, other in itertools.combinations(seen, 2) if _overlap(one, other)]
    assert not any(set(one.share.agent) & set(other.share.all) for one, other in at_once)
    if there_is_one_for_each:
        assert len({each.share.agent for each in seen}) == runs
        assert len({each.share.grading for each in seen}) == 1


def _overlap(one: Seen, other: Seen) -> bool:
    return one.began < other.ended and other.began < one.ended
