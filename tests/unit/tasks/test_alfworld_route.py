"""Tests how the scripted agent plays the games to learn from."""

import subprocess
import sys
from pathlib import Path

import pytest

from a2rl.handout import hand_out
from tasks.alfworld import mini
from tasks.alfworld.prepare import HERE

AGENT = Path(__file__).parents[3] / "agents" / "scripted"
SCRIPT = """
import sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from routes import Setting, load_route
meta = {"seed": 0, "max_steps": 30, "options": {"prompts": sys.argv[3]}}
route = load_route("alfworld", Setting(Path(sys.argv[2]), SimpleNamespace(chat_template=None), 4096, meta, small=True))
for game in (route.environment(route.names[0]), route.practice(route.names[0])):
    game.write("Action: look")
    print(*game.commands)
"""


@pytest.mark.parametrize(("prompts", "command"), [("repaired", "look"), ("faithful", "Action: look")])
def test_a_command_to_learn_from_is_read_as_the_grader_does(prompts: str, command: str, tmp_path: Path) -> None:
    [household] = mini.generate(1, 1, "train")
    mini.write(household, tmp_path / "data" / "train" / "0")
    hand_out(tmp_path / "data", HERE / "alfred")
    arguments = [sys.executable, "-c", SCRIPT, str(AGENT), str(tmp_path / "data"), prompts]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ended.stdout == f"{command}\n" * 2, ended.stderr
