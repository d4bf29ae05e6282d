"""Tests what the tracer notes of programs, and that it never gets in their way. The libraries here are fakes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from a2rl.recording import tracer
from tests.labels.traced_programs import traced_environment

TRL = """
class Trainer:
    class state: global_step = 7
class SFTTrainer(Trainer):
    def train(self): return "trained"
class GRPOTrainer(SFTTrainer):
    rollout_func = len
    def train(self):
        super().train()
        raise RuntimeError("out of memory")
"""
OPTIMIZERS = """
hooks = []
def register_optimizer_step_post_hook(hook): hooks.append(hook)
class Adam:
    def step(self):
        for hook in hooks: hook(self, (), {})
"""
GENERATION = "class GenerationMixin:\n    def generate(self): return self.chat()\n    def chat(self): return 'text'\n"
MODELS = """
class PreTrainedModel:
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path): return cls()
    def save_pretrained(self, save_directory, full=False):
        import safetensors.torch
        safetensors.torch.save_file({}, save_directory + "/model.safetensors")
"""
FILES = "def save_file(tensors, filename): pass\ndef load_file(filename): return {}\n"


class Scene:
    """A folder with fakes of libraries, in which programs run under the tracer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = traced_environment(folder)
        libraries = folder / "site-packages"
        for name, text in {
            "trl/__init__": TRL, "torch/__init__": "", "torch/optim/__init__": "", "torch/optim/optimizer": OPTIMIZERS,
            "transformers/__init__": "", "transformers/generation/__init__": "",
            "transformers/generation/utils": GENERATION, "transformers/modeling_utils": MODELS,
            "safetensors/__init__": "", "safetensors/torch": FILES,
        }.items():  # fmt: skip
            (libraries / name).parent.mkdir(parents=True, exist_ok=True)
            (libraries / f"{name}.py").write_text(text)
        self.environment["PYTHONPATH"] = os.pathsep.join((str(folder / "tracer"), str(libraries)))

    @property
    def trace(self) -> Path:
        return self.folder / "trace.jsonl"

    def run(self, text: str, status: int = 0) -> list[dict[str, Any]]:
        """Runs a program; returns what was noted."""
        (self.folder / "train.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "train.py"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
        self.stdout = done.stdout
        return [json.loads(line) for line in self.trace.read_text().splitlines()] if self.trace.exists() else []


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_trainer_is_noted_with_its_classes_steps_and_place(scene: Scene) -> None:
    began, ended = scene.run("import trl\nprint(trl.SFTTrainer().train())\n")
    assert (began["event"], began["classes"]) == ("train", ["trl.SFTTrainer", "trl.Trainer"])
    assert (began["file"], began["line"]) == (str(scene.folder / "train.py"), 2)
    assert (ended["event"], ended["steps"], ended["failed"]) == ("trained", 7, False)
    assert scene.stdout == "trained\n"


def test_a_trainer_within_a_trainer_is_noted_once(scene: Scene) -> None:
    """Its error reaches the program."""
    began, ended = scene.run("import trl\nclass Mine(trl.GRPOTrainer): pass\nMine().train()\n", status=1)
    assert began["classes"][:2] == ["__main__.Mine", "trl.GRPOTrainer"]
    assert began["settings"] == ["rollout_func"]
    assert ended["failed"]


def test_steps_and_generations_are_counted_in_order_with_places(scene: Scene) -> None:
    noted = scene.run(
        "from torch.optim.optimizer import Adam\nfrom transformers.generation.utils import GenerationMixin\n"
        "def update():\n    Adam().step()\n"
        "for _ in range(500):\n    GenerationMixin().generate()\n    update()\n    update()\n"
    )
    assert {line["event"] for line in noted} == {"work"}
    assert len(noted) < 10
    assert [sum(line[key] for line in noted) for key in ("generations", "turns")] == [500, 500]
    steps = [each for line in noted for each in line["steps"]]
    assert sum(each["count"] for each in steps) == 1000
    assert {(each["file"], each["function"], each["line"]) for each in steps} == {
        (str(scene.folder / "train.py"), "update", 4)
    }


def test_checkpoints_loaded_and_saved_are_noted_once_by_path(scene: Scene) -> None:
    noted = scene.run(
        "from transformers.modeling_utils import PreTrainedModel\n"
        "class Model(PreTrainedModel): pass\n"
        "model = Model.from_pretrained('base')\nassert type(model) is Model\nmodel.save_pretrained('out', full=True)\n"
    )
    found = [(line["event"], line["path"]) for line in noted]
    assert found == [("loaded", str(scene.folder / "base")), ("saved", str(scene.folder / "out"))]


def test_checkpoints_are_noted_also_where_their_paths_are_named(scene: Scene) -> None:
    noted = scene.run(
        "import safetensors.torch\nfrom transformers.modeling_utils import PreTrainedModel\n"
        "model = PreTrainedModel.from_pretrained(pretrained_model_name_or_path='base')\n"
        "model.save_pretrained(save_directory='out')\n"
        "safetensors.torch.load_file(filename='a')\nsafetensors.torch.save_file({}, filename='b')\n"
    )
    found = [(line["event"], Path(line["path"]).name) for line in noted]
    assert found == [("loaded", "base"), ("saved", "out"), ("loaded", "a"), ("saved", "b")]


def test_what_is_counted_is_written_before_the_next_event(scene: Scene) -> None:
    """It is also written when the program ends."""
    noted = scene.run(
        "import safetensors.torch\nfrom torch.optim.optimizer import Adam\n"
        "Adam().step(); Adam().step()\nsafetensors.torch.save_file({}, 'x')\nAdam().step()\n"
    )
    assert [line["event"] for line in noted] == ["work", "work", "saved", "work"]


def test_children_note_too_however_they_are_started(scene: Scene) -> None:
    noted = scene.run(
        "import os, subprocess, sys\nfrom torch.optim.optimizer import Adam\nAdam().step()\nAdam().step()\n"
        "child = os.fork()\nif not child:\n    Adam().step()\n    sys.exit()\nos.waitpid(child, 0)\n"
        "subprocess.run([sys.executable, '-c', 'import trl; trl.SFTTrainer().train()'])\n"
    )
    counts: dict[str, int] = {}
    for line in noted:
        if line["event"] == "work":
            counts[line["process"]] = counts.get(line["process"], 0) + sum(each["count"] for each in line["steps"])
    assert sorted(counts.values()) == [1, 2]
    assert len({line["process"] for line in noted}) == 3


def test_a_program_without_these_libraries_notes_nothing(scene: Scene) -> None:
    """It imports nothing more."""
    assert scene.run("import sys\nprint(sorted(sys.modules))") == []
    traced = set(scene.stdout.split("'")[1::2])
    scene.environment["PYTHONPATH"] = ""
    scene.run("import sys\nprint(sorted(sys.modules))")
    assert traced - set(scene.stdout.split("'")[1::2]) <= {"sitecustomize", "atexit"}


def test_the_environments_own_sitecustomize_still_runs(scene: Scene) -> None:
    """The path is as without the tracer."""
    (scene.folder / "site-packages" / "sitecustomize.py").write_text("own = 'mine'\n")
    scene.run("import sitecustomize, sys\nprint(sitecustomize.own, sys.path)")
    assert scene.stdout.startswith("mine ")
    assert str(scene.folder / "tracer") not in scene.stdout


@pytest.mark.parametrize("where", ["/proc/nothing/here", "/dev/full", "/", "link", "pipe"])
def test_an_unwritable_file_does_not_disturb_the_program(scene: Scene, where: str) -> None:
    target = Path(where)
    if where == "link":
        target = scene.folder / "link"
        target.symlink_to(scene.folder / "other")
    elif where == "pipe":
        target = scene.folder / "pipe"
        os.mkfifo(target)
    scene.environment[tracer.VARIABLE] = str(target)
    scene.run("import trl\nfrom torch.optim.optimizer import Adam\nAdam().step()\nprint(trl.SFTTrainer().train())\n")
    assert scene.stdout == "trained\n"
    assert not (scene.folder / "other").exists()


def test_a_full_file_gets_no_more_lines(scene: Scene) -> None:
    with scene.trace.open("wb") as file:
        file.truncate(tracer.MAX_BYTES)
    (scene.folder / "train.py").write_text("import trl\ntrl.SFTTrainer().train()\n")
    subprocess.run([sys.executable, "train.py"], cwd=scene.folder, env=scene.environment, check=True)
    assert scene.trace.stat().st_size == tracer.MAX_BYTES
