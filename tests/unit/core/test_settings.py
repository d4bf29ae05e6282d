"""Tests what is read from the environment of ordinary machines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from a2rl.core.settings import Settings


def test_a_key_that_ends_in_a_line_break_is_the_key(tmp_path: Path) -> None:
    settings = Settings(tmp_path, {"OPENAI_API_KEY": "sk-123\n"})
    assert settings.forwarded(("OPENAI_API_KEY", "NOT_SET")) == {"OPENAI_API_KEY": "sk-123"}


def test_an_empty_variable_is_forwarded_but_is_no_key(tmp_path: Path) -> None:
    settings = Settings(tmp_path, {"CUDA_VISIBLE_DEVICES": "", "FIRST_KEY": "\n", "OTHER_KEY": "sk-123"})
    assert settings.forwarded(("CUDA_VISIBLE_DEVICES",)) == {"CUDA_VISIBLE_DEVICES": ""}
    assert settings.keys(("FIRST_KEY", "OTHER_KEY")) == {"OTHER_KEY": "sk-123"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without an entry in the list of users")
def test_a_user_without_a_home_gets_one() -> None:
    program = """
import os
from pathlib import Path
from a2rl.core.settings import Settings
os.setgid(61234); os.setuid(61234)
Settings(Path("/checkout"), {}).provide_home()
print(Path.home())
"""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Settings.load().root)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "/checkout/.prefect/home"
