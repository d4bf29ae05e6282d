"""Tests that the picture of the packages in the docs is up to date with the code."""

import subprocess
import sys
from pathlib import Path


def test_the_picture_of_the_packages_matches_the_code(repository: Path) -> None:
    script = repository / "scripts" / "draw_architecture.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
