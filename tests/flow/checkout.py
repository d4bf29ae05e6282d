"""A small checkout for tests of the real command line: the real code, quick tasks and a very small base model."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import tasks
from a2rl.core.settings import Settings
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.verify import verify_run
from a2rl.run.directory import RunDir

REPO = Path(__file__).resolve().parents[2]
A2RL = [sys.executable, "-P", "-m", "a2rl"]
EVAL_ITEMS = 24

SUBMITTER = '''
"""Submits a few distinct checkpoints, made by nudging the base model's weights; goes on after a lost connection."""
import os, shutil, sys, time
from pathlib import Path

import numpy as np
import requests
from safetensors.numpy import load_file, save_file

url, count, llm = os.environ["GRADING_SERVER_URL"], int(sys.argv[1]), os.environ.get("LLM")


def insist(address, body):
    """Asks again where the other side has died."""
    for attempt in range(20):
        try:
            return requests.post(address, json=body, timeout=600)
        except requests.ConnectionError:
            time.sleep(0.5)
    raise SystemExit(f"{address} is gone")


base = load_file(Path(os.environ["MODEL_PATH"]) / "model.safetensors")
Path("code/notes.txt").write_text("nudging")
for number in range(count):
    target = Path("output") / f"v{number}"
    if not target.exists():
        shutil.copytree(os.environ["MODEL_PATH"], target, copy_function=shutil.copyfile)
        nudged = {name: value + np.float32(0.01 * (number + 1)) for name, value in base.items()}
        save_file(nudged, target / "model.safetensors", metadata={"format": "pt"})
    if llm:
        said = [{"role": "user", "content": "what now?"}]
        insist(f"{llm}/v1/messages", {"model": "the-driver", "max_tokens": 9, "messages": said}).raise_for_status()
    print(insist(f"{url}/submit", {"model_path": str(target)}).text, flush=True)
'''


class CommandLine:
    """Runs `a2rl` in a folder that it uses as its checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.variables: dict[str, str] = {}
        """More of the environment of its commands."""

    def start(self, *arguments: str, **env: str) -> "subprocess.Popen[str]":
        """Starts an `a2rl` command in a new process group."""
        return subprocess.Popen(
            [*A2RL, *arguments],
            cwd=self.root,
            env=self.environment | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, timeout_s: float = 240) -> "subprocess.CompletedProcess[str]":
        process = self.start(*arguments)
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def problems(self, run_id: str) -> list[str]:
        """Returns what `a2rl verify` would report, but in this process, because the command takes seconds to start."""
        if str(self.root / "tasks") not in tasks.__path__:
            tasks.__path__.append(str(self.root / "tasks"))  # it has other tasks than this checkout
        settings = Settings(self.root, self.environment)
        checks = verify_run(RunDir(settings.runs / run_id), Tracker(settings))
        return [f"{check.what}: {check.problem}" for check in checks if check.problem]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands."""
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
        ours = {"A2RL_ROOT": str(self.root), "PYTHONPATH": str(self.root), "COLUMNS": "200"}
        return keep | ours | self.variables


class Checkout(CommandLine):
    """A folder that `a2rl` uses as its checkout."""

    def __init__(self, root: Path, tasks: dict[str, str], items: int = EVAL_ITEMS, weights_bytes: int = 0) -> None:
        """Args:
        tasks: id of each copy of gsm8k -> text that is inserted at the start of its prepare function.
        items: of the eval set.
        weights_bytes: approximate size of the base model's weights; 0: as small as possible.
        """
        super().__init__(root)
        self._items = items
        root.mkdir(parents=True)
        for name in ("a2rl", "flows", "stages"):
            (root / name).symlink_to(REPO / name)
        (root / "agents").mkdir()
        for agent in (REPO / "agents").iterdir():
            (root / "agents" / agent.name).symlink_to(agent)
        (root / "tasks").mkdir()
        shutil.copyfile(REPO / "tasks/__init__.py", root / "tasks/__init__.py")
        for task, before in tasks.items():
            self._add_task(task, before)
        self._write_params(list(tasks))
        self._build_model()
        if weights_bytes:
            self._enlarge_model(weights_bytes)

    def copy_to(self, root: Path, *without: str) -> "Checkout":
        """Makes a second checkout with the same content at another path, except for what has one of these names."""
        shutil.copytree(self.root, root, symlinks=True, ignore=shutil.ignore_patterns(*without))
        other = copy.copy(self)
        other.root = root
        return other

    def script(self, name: str, text: str) -> Path:
        """Writes a start script for --agent, in a separate folder."""
        folder = self.root / "scripts" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "start.sh").write_text(text, encoding="utf-8")
        return folder / "start.sh"

    def submitter(self, count: int) -> Path:
        script = self.script("submitter", f'exec python "$(dirname "$0")/agent.py" {count}\n')
        (script.parent / "agent.py").write_text(SUBMITTER, encoding="utf-8")
        return script

    def talker(self, count: int) -> str:
        """Defines an agent that asks its LLM before each submission."""
        folder = self.root / "agents" / "talker"
        folder.mkdir(exist_ok=True)
        (folder / "agent.py").write_text(SUBMITTER, encoding="utf-8")
        start = f'["python", "{{agent_dir}}/agent.py", "{count}"]'
        (folder / "agent.yaml").write_text(
            f"title: asks and submits\nstart: {start}\ndriver: the-driver\n"
            'base_url: http://127.0.0.1:9\nenv: {LLM: "{base_url}"}\n'
        )
        return folder.name

    def _add_task(self, task: str, before: str) -> None:
        folder = self.root / "tasks" / task
        shutil.copytree(REPO / "tasks/gsm8k", folder, ignore=shutil.ignore_patterns("__pycache__"))
        for path in folder.glob("*.py"):
            text = path.read_text(encoding="utf-8").replace("tasks.gsm8k", f"tasks.{task}")
            text = text.replace('id="gsm8k"', f'id="{task}"').replace("eval_items=400", f"eval_items={self._items}")
            if path.name == "prepare.py":
                text = text.replace('    if variant == "mini":', f'    {before}\n    if variant == "mini":', 1)
                text = text.replace("MINI_TRAIN, MINI_SEED = 6000,", "MINI_TRAIN, MINI_SEED = 50,")
            path.write_text(text, encoding="utf-8")

    def _write_params(self, tasks: list[str]) -> None:
        text = (REPO / "params.yaml").read_text(encoding="utf-8").replace("[gsm8k]", json.dumps(tasks))
        (self.root / "params.yaml").write_text(text, encoding="utf-8")

    def _build_model(self) -> None:
        from a2rl.models.tiny import build_tiny
        from a2rl.models.tiny_params import TinyParams

        small = TinyParams(hidden_size=32, intermediate_size=64, layers=1, heads=2, kv_heads=1, vocab_size=320, steps=2)
        sums = [(a, b) for a in range(9) for b in range(9)]
        documents = [f"{a} plus {b} makes {a + b}.\nQuestion: how many? Answer: {a + b}" for a, b in sums]
        build_tiny(documents, self.root / "models" / "tiny", small)

    def _enlarge_model(self, weights_bytes: int) -> None:
        """Adds unused rows to the vocabulary: the checkpoint becomes large but computes the same."""
        from transformers import AutoModelForCausalLM

        folder = self.root / "models" / "tiny"
        model = AutoModelForCausalLM.from_pretrained(folder)
        model.resize_token_embeddings(weights_bytes // (4 * model.config.hidden_size), mean_resizing=False)
        model.save_pretrained(folder, max_shard_size="100GB")
