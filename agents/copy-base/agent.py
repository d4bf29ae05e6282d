"""Submits the base model unchanged. This is the control: whatever it gains is due to chance."""

import os
import shutil
from pathlib import Path

import requests

target = Path(os.environ["OUTPUT_DIR"]) / "base"
shutil.copytree(os.environ["MODEL_PATH"], target, dirs_exist_ok=True)
answer = requests.post(f"{os.environ['GRADING_SERVER_URL']}/submit", json={"model_path": str(target)}, timeout=600)
print(answer.status_code, answer.text)
