"""A program in the place of vLLM's Python, with no model: its answers are numbers that the weights alone decide.

engine = FakeEngine(folder)
environ = {"A2RL_VLLM_PYTHON": str(engine.python)}
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

PROGRAM = """#!{python} -u
import hashlib, json, os, sys
from pathlib import Path
here = Path({here!r})
def say(**message):
    print(json.dumps(message), flush=True)
def number_of(folder):
    return int(hashlib.sha256((Path(folder) / "model.safetensors").read_bytes()).hexdigest()[:6], 16)
if "-c" in sys.argv:  # the checks before a run ask for its build, and how many GPUs CUDA sees
    print("vllm 0.32.0" if "vllm" in sys.argv[-1] else len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
    sys.exit()
with (here / "starts").open("a") as starts:
    starts.write(json.dumps([os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES", "")]) + chr(10))
number = number_of(sys.argv[3])
def lacks_memory():
    lacking = here / "lacking"
    times = int(lacking.read_text()) if lacking.exists() else 0
    lacking.write_text(str(max(0, times - 1)))
    return times > 0
if lacks_memory():
    say(memory="3.0 GiB are missing")
    sys.exit(2)
say(ready=True, has_chat_template=False, cache_tokens=None)
for line in sys.stdin:
    request = json.loads(line)
    if "load" in request:
        if lacks_memory():
            say(loaded=request["nonce"], memory="3.0 GiB are missing")
            continue
        print('{{"late": "answer of an earlier grade"}}', flush=True)
        refuses = (here / "refuse").exists()
        number = number if refuses else number_of(request["load"])
        problem = "the weights differ" if refuses else ""
        say(loaded=request["nonce"], problem=problem, has_chat_template=False, cache_tokens=None)
    elif "count" in request:
        say(room=1000)
    elif "id" in request:
        if (here / "die").exists():
            (here / "die").unlink()
            sys.exit(9)
        completion = dict(text="#### " + str(number), finish="stop", prompt_tokens=1, tokens=1)
        say(id=request["id"], completion=completion, cached_tokens=0)
"""


class Start(NamedTuple):
    """What an engine has noted at its start."""

    pid: int
    gpus: str
    """Its CUDA_VISIBLE_DEVICES."""


class FakeEngine:
    """The program, in a folder where each engine notes its start."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.python = folder / "python"
        self._folder = folder
        self.python.write_text(PROGRAM.format(python=sys.executable, here=str(folder)))
        self.python.chmod(0o755)

    def starts(self) -> list[Start]:
        """Returns the starts of all engines."""
        noted = self._folder / "starts"
        return [Start(*json.loads(line)) for line in noted.read_text().splitlines()] if noted.exists() else []

    def die_once(self) -> None:
        """Lets the engine die at its next request."""
        (self._folder / "die").touch()

    def refuse(self) -> None:
        """Lets the engine refuse other weights from now on."""
        (self._folder / "refuse").touch()

    def lack_memory(self, times: int) -> None:
        """Lets engines find too little memory so many times."""
        (self._folder / "lacking").write_text(str(times))

    def hang(self) -> None:
        """Lets engines that start from now on never finish a request."""
        self.python.write_text(self.python.read_text().replace("say(id=", "__import__('time').sleep(600); say(id="))
