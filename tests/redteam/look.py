"""Helpers for `prepare` and `held` of attacks, which run outside the sandbox, before and after the attack."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

from a2rl.bundle.archive import pack
from a2rl.bundle.audit import SOUND
from a2rl.core.settings import Settings
from a2rl.run.events import Graded
from a2rl.run.records import ExecuteRecord
from tests.bundles import Members, rewritten
from tests.mock_llm_process import driver_process
from tests.run_maker import checkout, finished_run

SCENARIO = """
turns: [{say: Done.}]
asides: [{asked: hi, say: hello}]
"""


def settings_of(after: Any) -> Settings:
    """Returns the settings of the checkout that a run belongs to."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return Settings(after.run.root.parents[1], kept)


def refunded_too_much(after: Any, share: float) -> str:
    """Returns a message if more than this share of the budget was refunded, or if nothing was submitted."""
    record, budget_s = after.run.need("execute", ExecuteRecord), after.run.spec.budget_s
    if not record.submissions:
        return "it could not try: no submission was accepted"
    refunded_s = record.refunded_s or 0.0
    return f"{refunded_s:.0f} s were refunded, though it computed" if refunded_s > share * budget_s else ""


def not_graded(after: Any) -> str:
    """Returns a message unless a submission was graded."""
    return "" if after.run.ledger.events(Graded) else after.got or after.stopped_by


def hidden_rows(after: Any) -> list[bytes]:
    """Returns the rows of the hidden data, to search for them in the records of a run."""
    return [row for row in Path(after.scene.facts["hidden"]).read_bytes().splitlines() if row]


def serve_llm(stack: ExitStack, folder: Path) -> dict[str, Any]:
    """Starts a scripted LLM; returns the result of `prepare`: an agent that gets the LLM's URL in WHERE."""
    scenario = folder / "scenario.yaml"
    scenario.write_text(SCENARIO)
    log = _llm_log(folder.parent, folder.name)
    log.unlink(missing_ok=True)
    url = stack.enter_context(driver_process(str(scenario), log))
    agent = {"driver": "the-driver", "base_url": "http://127.0.0.1:9", "env": {"WHERE": "{base_url}"}}
    return {"agent": agent, "spec": {"base_url": url}}


def llm_requests(after: Any, attack: str) -> list[dict[str, Any]]:
    """Returns the requests that the attack with this name sent to the scripted LLM."""
    log = _llm_log(after.run.root.parents[1] / "scripts", attack)
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _llm_log(scripts: Path, attack: str) -> Path:
    return scripts / f"served-{attack}.jsonl"


TIMEOUT_S = 400
"""Timeout of a few commands, on a machine that does much else."""
ENDED = "ended with "
COMMANDS = f"""
import sys
from a2rl.cli import main
for command in sys.argv[1:]:
    sys.argv = ["a2rl", *command.split()]
    try:
        main()
    except SystemExit as end:
        print(f"{ENDED}{{end.code or 0}} {{command}}", flush=True)
    else:
        print(f"{ENDED}0 {{command}}", flush=True)
"""
DEAR, IS_SOUND = "a thesis\n", "calls it sound"


class Reader:
    """Somebody who is sent a bundle or a run's folder, and reads it with a2rl's commands; has a file that is dear."""

    def __init__(self, folder: Path) -> None:
        self._sent = finished_run(folder / "theirs", in_full=True, model="tiny")
        self._honest, self.victim, self._outside = folder / "honest.tar.gz", folder / "dear" / "thesis.txt", folder
        pack(self._sent.run, self._honest, with_weights=True)
        self._original = shutil.copytree(self._sent.run.root, folder / "original", symlinks=True)
        (folder / "mine" / "models").mkdir(parents=True)
        models = self._sent.settings.root / "models"
        (models / "small").rename(models / "tiny")
        shutil.copytree(models / "tiny", folder / "mine" / "models" / "tiny")
        self._mine = checkout(folder / "mine").root
        self.victim.parent.mkdir()
        self.victim.write_text(DEAR)
        honest = [self.audit(lambda members: None), self.look_at(lambda folder: None)]
        if not all(each.endswith(IS_SOUND) for each in honest):  # then a hostile one would prove nothing
            raise RuntimeError(f"the honest run is not called sound: {honest}")

    def audit(self, *edits: Callable[[Members], None]) -> str:
        """Audits the honest bundle after each of the edits; returns what one of them achieved, or ""."""
        bundles = [self._outside / f"hostile{number}.tar.gz" for number, _ in enumerate(edits)]
        made = [rewritten(self._honest, bundle, edit) for bundle, edit in zip(bundles, edits, strict=True)]
        return self._tell(self._mine, *(f"audit {bundle}" for bundle in made))

    def look_at(self, *edits: Callable[[Path], object]) -> str:
        """Verifies and reports on the folder of the run after each of the edits; returns what they achieved, or ""."""
        found, run = list[str](), self._sent.run
        for edit in edits:
            shutil.rmtree(run.root)
            shutil.copytree(self._original, run.root, symlinks=True)
            edit(run.root)
            found.append(self._tell(self._sent.settings.root, f"verify {run.id}", f"report {run.id}"))
        return "; ".join(filter(None, found))

    def _tell(self, root: Path, *commands: str) -> str:
        """Runs commands in one process; returns what went wrong."""
        try:
            done = subprocess.run(
                [sys.executable, "-c", COMMANDS, *commands], env={**os.environ, "A2RL_ROOT": str(root)},
                capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{commands} took longer than {TIMEOUT_S} s"
        if [path.read_text() for path in self.victim.parent.iterdir()] != [DEAR]:
            return f"{commands} changed a file of the reader's, or wrote one"
        ends = [line.removeprefix(ENDED).split(" ", 1) for line in done.stdout.splitlines() if line.startswith(ENDED)]
        if len(ends) != len(commands) or "Traceback" in done.stderr:
            return f"{commands} failed: {done.stderr[-300:]}"
        sound = [command for code, command in ends if code == str(SOUND) and not command.startswith("report ")]
        return f"{', '.join(sound)} {IS_SOUND}" if sound else ""


@lru_cache(maxsize=1)
def reader() -> Reader:
    """Returns the reader, who is the same for all attacks of a session."""
    return Reader(Path(tempfile.mkdtemp()))


def slow(seconds: float, *work: Callable[[], object]) -> str:
    """Does the work; returns which of it took longer than that, or ""."""
    found = []
    for number, each in enumerate(work):
        started = time.process_time()
        each()
        if (took := time.process_time() - started) > seconds:
            found.append(f"number {number} took {took:.0f} s")
    return "; ".join(found)
