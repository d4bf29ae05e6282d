"""Tests whole runs of the real agent systems in the sandbox, driven by a scripted LLM.

Each writes code, trains `tiny` on mini gsm8k, submits, looks at its score, trains on and submits again. This needs
npm, a registry and the gsm8k data of `make data`; `make test-agents` provides them. Some tests also kill the agent.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from a2rl.agent_systems.definition import find_agent
from a2rl.agent_systems.installation import Installation
from a2rl.agent_systems.transcripts import Trajectory
from a2rl.core.locks import file_lock
from a2rl.core.settings import Settings
from a2rl.mock_llm.app import Served
from a2rl.mock_llm.scenario import SHIPPED
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted, Graded, SubmissionAccepted
from a2rl.run.records import BaselineRecord, ExecuteRecord, SetupRecord
from tests.flow.checkout import CommandLine
from tests.mock_llm_process import driver_process, read_log
from tests.run_maker import REPOSITORY, wait_for

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]
AGENTS = ("claude-code", "codex", "gemini-cli", "opencode", "mini-swe-agent")
WITH_V1 = {"codex", "opencode", "mini-swe-agent"}
STEPS = 50
"""For each of the two trainings, a third of the scenario's: enough to score 14 where the baseline is 4. A number of
steps gives the same score on a slow machine, which a number of seconds does not."""
THINK_S = 4


class Place(CommandLine):
    """A checkout for the runs, with the code, model, data and installed agents of this one, and a scripted LLM."""

    def __init__(self, root: Path, url: str, log: Path, thinks: int) -> None:
        """Args: thinks: the turn after the first submission; no work is lost if it is interrupted."""
        super().__init__(root)
        self.url, self.log, self.thinks = url, log, thinks

    def base_url(self, agent: str) -> str:
        return self.url + ("/v1" if agent in WITH_V1 else "")

    def succeed(self, *arguments: str) -> None:
        done = self.run(*arguments, timeout_s=600)
        assert done.returncode == 0, done.stdout + done.stderr

    def runs(self) -> list[RunDir]:
        return list(RunDir.all(self.root / "runs"))

    def served(self) -> list[Served]:
        return read_log(self.log)


@pytest.fixture(scope="session")
def installed() -> None:
    """Installs each agent system once, even if several processes run these tests."""
    settings = Settings.load(REPOSITORY)
    for agent in AGENTS:
        with file_lock(REPOSITORY / f".agents.{agent}.lock", f"another process installs {agent}", 3600):
            Installation(find_agent(agent, REPOSITORY), settings).install(lambda _: None)


@pytest.fixture
def place(installed: None, tmp_path: Path) -> Iterator[Place]:
    root = tmp_path / "a2rl"
    root.mkdir()
    for name in ("a2rl", "agents", "baselines", "data", "flows", "models", "stages", "tasks", "params.yaml", ".agents"):
        assert (REPOSITORY / name).exists(), f"no {name}: `make test-agents` makes it"
        (root / name).symlink_to(REPOSITORY / name)
    scenario = tmp_path / "scenario.yaml"
    text = (SHIPPED / "gsm8k.yaml").read_text(encoding="utf-8")
    played = yaml.safe_load(re.sub(r"--steps \d+", f"--steps {STEPS}", text))
    submitted = next(place for place, turn in enumerate(played["turns"]) if "/submit" in turn.get("run", ""))
    played["turns"].insert(submitted + 1, {"say": "I think.", "run": f"sleep {THINK_S}"})
    scenario.write_text(yaml.safe_dump(played), encoding="utf-8")
    with driver_process(str(scenario), tmp_path / "served.jsonl") as url:
        yield Place(root, url, tmp_path / "served.jsonl", submitted + 1)


def assert_sound(place: Place, run: RunDir, agent: str) -> Trajectory:
    """Checks that the run is complete, improved and was confined, and that its submissions name the agent's code."""
    assert run.need("setup", SetupRecord).sandbox.kind == "landlock"
    executed = run.need("execute", ExecuteRecord)
    assert (executed.ended, executed.why) == ("finished", "")
    accepted, graded = run.ledger.events(SubmissionAccepted), run.ledger.events(Graded)
    assert len(accepted) >= 2
    baseline = run.need("baseline", BaselineRecord).public.score
    second = next(grade for grade in graded if grade.weights_digest == accepted[1].weights_digest)
    assert baseline is not None
    assert second.result.score is not None
    assert second.result.score > baseline
    commits = subprocess.run(
        ["git", "log", "--format=%H"], cwd=run.code, capture_output=True, text=True, check=True
    ).stdout.split()
    assert accepted[0].code_revision in commits
    assert accepted[1].code_revision in commits
    assert accepted[0].code_revision != accepted[1].code_revision
    assert place.problems(run.id) == []
    whole = Trajectory.model_validate_json(run.trajectory.read_text(encoding="utf-8"))
    assert whole.agent.name == agent
    return whole


def assert_counted(place: Place, whole: Trajectory) -> None:
    """Checks that the trajectory has every token that the LLM served, and the agent's commands."""
    served, total = place.served(), whole.final_metrics
    assert total is not None
    assert total.total_prompt_tokens == sum(each.input_tokens for each in served)
    assert total.total_completion_tokens == sum(each.output_tokens for each in served)
    assert total.total_cached_tokens == sum(each.cached_tokens for each in served)
    commands = [call for step in whole.steps for call in step.tool_calls or ()]
    assert any("train.py" in json.dumps(call.arguments) for call in commands)


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent != "claude-code"])  # the README's agent, below
def test_it_completes_a_run_and_every_token_is_counted(place: Place, agent: str) -> None:
    place.succeed("run", "--task", "gsm8k", "--agent", agent, "--base-url", place.base_url(agent), "--budget", "4m")
    [run] = place.runs()
    assert_counted(place, assert_sound(place, run, agent))


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["claude-code", "codex"])
def test_a_run_that_was_killed_goes_on_in_the_same_session(place: Place, agent: str) -> None:
    url = place.base_url(agent)
    flow = place.start("run", "--task", "gsm8k", "--agent", agent, "--base-url", url, "--budget", "4m")
    wait_for(lambda: any(each.turn == place.thinks for each in place.served()), 300)
    time.sleep(1)
    flow.kill()
    flow.communicate()
    [run] = place.runs()
    place.succeed("resume", run.id)
    whole = assert_sound(place, run, agent)
    assert len(run.ledger.events(AgentStarted)) == 2
    sessions = {step.extra.get("session_id") for step in whole.steps if step.extra and "session_id" in step.extra}
    assert len(sessions) <= 1
    turns = [each.turn for each in place.served() if each.kind == "main" and each.status == 200]
    assert turns == sorted(turns, key=lambda turn: turn or 0)  # it did not start from the beginning again


def test_the_readmes_section_on_real_agents_works_word_for_word(place: Place) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Run a real agent")[2].partition("\n## ")[0]
    block = re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)[0]
    command = "a2rl run --task gsm8k --agent claude-code --budget 10m"
    assert command in block
    script = place.root / "readme.sh"
    script.write_text("set -e\n" + block.replace(command, f"{command} --base-url {place.url}"), encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": os.environ["HOME"], "A2RL_ROOT": str(place.root), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", str(script)], cwd=place.root, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = place.runs()
    assert run.id in done.stdout
    assert_counted(place, assert_sound(place, run, "claude-code"))
