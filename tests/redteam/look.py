"""Helpers for `prepare` and `held` of attacks, which run outside the sandbox, before and after the attack."""

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from a2rl.core.settings import Settings
from a2rl.run.events import Graded
from a2rl.run.records import ExecuteRecord
from tests.mock_llm_process import driver_process

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


def slow(seconds: float, *work: Callable[[], object]) -> str:
    """Does the work; returns which of it took longer than that, or ""."""
    found = []
    for number, each in enumerate(work):
        started = time.process_time()
        each()
        if (took := time.process_time() - started) > seconds:
            found.append(f"number {number} took {took:.0f} s")
    return "; ".join(found)
