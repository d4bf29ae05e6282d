"""Takes over the terminal, the report page or the MLflow page of anybody who looks at the run.

Control characters in what an agent names or prints (checkpoints, files, code, processes) are shown as visible escapes.
"""

import ctypes
import os
import re
import shutil
from pathlib import Path

LEVEL = "run"
NAME = "\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\u202egpj\u2066\u200b\ufeff\u2028\U000e0041[red]<script>alert(1)<|script>"
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)


def attack(scene):
    ctypes.CDLL(None).prctl(15, b"\x1b[2J\xff\x9b31m", 0, 0, 0)  # PR_SET_NAME
    os.write(1, f"{NAME} \x1b]52;c;aGk=\x07\rover\n".encode())
    os.write(2, b"\x1b[2J\xff\xfe\x9b\n")
    for name in (NAME, f"{NAME}.py", "a\nb.py", "odd\udcff.py"):
        Path("code", name).write_text(f"# {NAME}")
        Path("output", name + "x").write_text(NAME)
    shutil.copytree(os.environ["MODEL_PATH"], Path("output", NAME + "m"))
    for path in (f"output/{NAME}m", f"nowhere/{NAME}", "a\nb\r\tc", NAME * 100, "\ud800", "\0"):
        scene.submit(path)
    scene.request("/%1b%5b2J%e2%80%ae", timeout_s=20)
    os._exit(3)


def held(after):
    import io

    from a2rl.cli.console import PlainConsole
    from a2rl.cli.flow_runner import Follower
    from a2rl.results.mlflow.tracking import Tracker
    from tests.redteam.look import settings_of

    if not after.run.report.exists():
        return "there is no report"
    logs = [path for path in after.run.logs.glob("*") if path.is_file() and "transcript" not in path.name]
    shown = {path.name: path.read_bytes().decode(errors="surrogateescape") for path in [*logs, after.run.report]}
    screen = io.StringIO()
    follower = Follower([after.run], PlainConsole(file=screen, force_terminal=True, color_system=None))
    follower._seen.clear()
    follower._look()
    shown["the terminal"] = screen.getvalue()
    client = Tracker(settings_of(after)).store.client
    for run in client.search_runs([each.experiment_id for each in client.search_experiments()]):
        shown["MLflow"] = shown.get("MLflow", "") + "\n".join([*run.data.tags.values(), *run.data.params.values()])
    if "<script>" in shown["index.html"]:
        return "the page runs its script"
    return "; ".join(f"{place} has {found[0]!r}" for place, text in shown.items() if (found := OBEYED.search(text)))
