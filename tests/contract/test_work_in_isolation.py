"""Tests that agents can do their normal work in the sandbox: training, tools, servers, the grading API."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from a2rl.agent_systems.definition import Agent
from a2rl.core.settings import Settings
from a2rl.execution.command import confinement_of
from a2rl.execution.workspace import agent_environment, build_workspace
from a2rl.linux import landlock
from a2rl.run.directory import RunDir
from a2rl.sandbox.command import AgentCommand
from a2rl.sandbox.process import AgentProcess
from a2rl.sandbox.selection import select_sandbox
from tests.http_server import Quiet, serving
from tests.small_gguf import write_wheel

pytestmark = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
TIMEOUT_S = 120
TRAINING = """
import os, subprocess, sys, torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

if __name__ == "__main__":
    rows = [row for batch in DataLoader(torch.arange(100), batch_size=10, num_workers=2) for row in batch.tolist()]
    assert rows == list(range(100))
    store = torch.distributed.TCPStore("localhost", 0, 1, is_master=True)
    store.set("key", "value")
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
    tokenizer = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = tokenizer("one plus one is two", return_tensors="pt")
    model(**batch, labels=batch["input_ids"]).loss.backward()
    optimizer.step()
    model.save_pretrained(os.path.join(os.environ["OUTPUT_DIR"], "v1"))
    print("trained")
"""
TOOLS = {
    "python": "python -c 'import a2rl' && exit 1; python -c 'print(\"ran\")'",
    "pip": "pip --version && echo ran",
    "venv": "python -m venv --without-pip made && made/bin/python -c 'print(\"ran\")'",
    "git": "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && echo ran",
    "tar": "mkdir t && touch t/{1..50} && chmod 600 t/1 && tar cf t.tar t && rm -r t && tar xpf t.tar && stat -c%a t/1"
    " | grep 600 && echo ran",
    "cp": "touch -d @9 old && chmod 604 old && cp -a old copied && stat -c%a%Y copied | grep 6049 && echo ran",
    "taskset": "nice taskset -c $(taskset -pc $$ | tr -dc '0-9,-' | tail -c1) python -c 'import torch' && echo ran",
    "git clone": "git init -q s && cd s && touch {1..50} && git add . && git -c user.name=a -c user.email=a@b commit"
    " -qm x && git clone -q --no-local . ../c && git -C ../c status --short && echo ran",
    "curl": "curl --fail --silent $GRADING_SERVER_URL/time && echo ran",
    "node": "node -e \"fetch(process.env.GRADING_SERVER_URL).then(r => r.text()).then(() => console.log('ran'))\"",
    "gcc": "echo 'int main(void) { return 0; }' > x.c && gcc x.c -o x && ./x && echo ran",
    "tmux": "tmux -S $TMPDIR/s new -d 'sleep 9' && tmux -S $TMPDIR/s ls && tmux -S $TMPDIR/s kill-server && echo ran",
}
Work = Callable[..., str]
PIP = """
set -e
python -m venv env
env/bin/python -m pip install --quiet {wheel}
env/bin/python -c 'import hello; print(hello.WORD)'
"""
HUB = """
import time
from huggingface_hub import snapshot_download
started = time.monotonic()
try:
    snapshot_download("Qwen/Qwen2.5-0.5B")
except Exception as error:
    print("failed", time.monotonic() - started < 10, type(error).__name__)
"""


class Grader(Quiet):
    def respond(self) -> None:
        self.say(b"{}")


@pytest.fixture
def grader() -> Iterator[int]:
    with serving(Grader) as url:
        yield int(url.rpartition(":")[2])


@pytest.fixture
def work(new_run: Callable[..., RunDir], settings: Settings, base_model: Path, tmp_path: Path, grader: int) -> Work:
    """Runs a command as an agent in its sandbox; returns its output. Keywords are settings of the run."""
    isolation = select_sandbox("landlock", settings)
    (tmp_path / "visible").mkdir()
    (tmp_path / "description.md").write_text("Do sums.")
    agent = Agent(id="mine", title="mine", start=("true",), folder=tmp_path / "visible")

    def do(command: list[str], **changes: object) -> str:
        run = new_run(**changes)
        for made in (run.workspace, run.given):
            shutil.rmtree(made)
        build_workspace(run, base_model, tmp_path / "visible", tmp_path / "description.md")
        environment = agent_environment(run, agent, f"http://127.0.0.1:{grader}", settings)
        confinement = confinement_of(run, agent, settings, isolation, connect=(grader,))
        log = run.logs / "agent.log"
        arguments = AgentCommand(command, str(run.workspace), environment, str(log), confinement)
        with AgentProcess(arguments, settings) as process:
            ended = process.wait(TIMEOUT_S)
        assert ended is not None
        assert ended.exit_code == 0, log.read_text()
        return log.read_text()

    return do


@pytest.fixture
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this machine that every user can read, with a wheel."""
    folder = tmp_path_factory.mktemp("library")
    folder.chmod(0o755)
    write_wheel(folder, "hello", {"__init__.py": b"WORD = 'from the wheel'\n"})
    return folder


@pytest.mark.heavy
def test_training_goes_on(work: Work) -> None:
    assert "trained" in work(["python", "-c", TRAINING])


@pytest.mark.heavy
def test_an_agent_installs_a_local_wheel_in_its_own_environment(work: Work, library: Path) -> None:
    wheel = library / "hello-1.0-py3-none-any.whl"
    assert work(["bash", "-c", PIP.format(wheel=wheel)], read=str(library)).endswith("from the wheel\n")


def test_an_agent_only_reads_the_folders_of_the_host_it_is_given(work: Work, library: Path) -> None:
    (library / "note").write_text("from the host")
    look = f"cat {library}/note; touch {library}/mine 2>/dev/null || echo; echo $COLOUR"
    assert work(["bash", "-c", look], read=str(library), env="COLOUR='deep blue'") == "from the host\ndeep blue\n"


def test_an_agent_cannot_read_other_folders_of_the_host(work: Work, library: Path) -> None:
    (library / "note").write_text("from the host")
    assert work(["bash", "-c", f"cat {library}/note 2>/dev/null || echo closed"]) == "closed\n"


def test_calls_of_the_hub_fail_at_once(work: Work) -> None:
    assert work(["python", "-c", HUB]).startswith("failed True")


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_works(work: Work, tool: str) -> None:
    if not shutil.which(tool.partition(" ")[0]):
        pytest.skip(f"{tool} is not installed")
    assert work(["bash", "-c", TOOLS[tool]]).endswith("ran\n")
