"""The file `run_meta.json` in the agent's workspace: what the agent may know of its run.

Its keys are those of the reference and a few more. The agent can change the file, so nothing ever reads it back.
"""

import json
import time

from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.records import SetupRecord
from a2rl.task_api.catalog import load_task

RUN_META = "run_meta.json"
RUN_META_MODE = 0o644


def run_meta(run: RunDir) -> str:
    """Returns the text of the file for this moment."""
    spec, now, remaining_s = run.spec, time.time(), max(0.0, run.clock.remaining_s())
    submits = [entry.at for entry in run.ledger.entries() if isinstance(entry.event, SubmissionAccepted)]
    limits = load_task(spec.task, run.checkout).variant(spec.variant).limits
    setup = run.read("setup", SetupRecord)
    memory = setup.memory if setup and not spec.grading_gpus else None
    known = {
        "start_time": int(now - (spec.budget_s - remaining_s)),
        "timeout_s": int(spec.budget_s),
        "last_submit_time": int(submits[-1]) if submits else None,
        "end_time": int(now + remaining_s),
        "task": spec.task,
        "mode": spec.mode,
        "seed": spec.seed,
        "steps": spec.steps,
        "driver": spec.driver,
        "variant": spec.variant,
        "max_new_tokens": spec.generation.max_new_tokens or limits.max_new_tokens,
        "max_steps": limits.max_steps,
        "chat_template_kwargs": spec.generation.chat_template_kwargs,
        "options": spec.options,
        "grader_gib": memory.total_gib if memory else None,
    }
    return json.dumps(known, indent=2)
