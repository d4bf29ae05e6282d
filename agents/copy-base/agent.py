"""Submits the base model unchanged. This is the control: whatever it gains is due to chance."""

import os
import shutil
from pathlib import Path

import requests

target = Path(os.environ["OUTPUT_DIR"]) / "base"
# The base model's files are read-only. Copies of these could not be replaced when the run is resumed.
shutil.copytree(os.environ["MODEL_PATH"], target, copy_function=shutil.copyfile, dirs_exist_ok=True)
url = f"{os.environ['GRADING_SERVER_URL']}/submit"
answer = requests.post(url, json={"model_path": str(target)}, timeout=None)  # a grade may take hours
print(answer.status_code, answer.text)
