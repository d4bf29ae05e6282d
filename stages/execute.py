"""Stage `execute`: the agent works until it ends or its budget does, with the grading service beside it.

Whatever the agent does is a result: that it crashed, ran out of time or submitted nothing is recorded, never retried.
"""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from a2rl.attempt import Ended, Execution, close_attempt
from a2rl.briefing import Before
from a2rl.budget import refund_s, waited_s
from a2rl.catalog import find_agent
from a2rl.events import AgentEnded, AgentStarted, ProcessesSurvived, SubmissionAccepted, SubmissionRefused
from a2rl.grading.server_process import GradingServer
from a2rl.inputs import check_inputs
from a2rl.isolation.strays import end_strays, is_anything_left
from a2rl.keys import learn_secrets
from a2rl.process import TRACE
from a2rl.records import ExecuteRecord
from a2rl.relay.record import llm_use
from a2rl.run import RunDir
from a2rl.settings import Settings

CUT_OFF = {"interrupted", "lost"}
"""How an attempt ends that is gone on with."""
MIN_TRIAL_S = 30.0
"""With less than that left, mode `multi` starts no further trial."""
MAX_SIGNS = 1_000_000
"""Files and folders that are looked at for signs of life."""


def execute(run: RunDir, settings: Settings, observe: Callable[[RunDir], None] = lambda run: None) -> ExecuteRecord:
    """Runs the agent, or goes on with it where an earlier attempt was cut off.

    Args:
        run: a run whose baseline is known.
        settings: this checkout.
        observe: called about twice a second, to mirror what is new elsewhere; what it raises changes nothing here.

    Raises:
        Interrupted: the user stopped the pipeline; the agent is gone and the run can be resumed.
        InfrastructureError: the grading service or the supervisor failed.
    """
    agent = find_agent(run.spec.agent, settings.root)
    learn_secrets(agent, settings)
    if (done := run.read("execute", ExecuteRecord)) is not None:
        return done
    started = time.monotonic()
    _close_lost_attempt(run)
    check_inputs(run)
    with GradingServer(run, settings) as server:
        server.wait_until_ready()
        execution = Execution(run, agent, settings, server, observe)
        while (before := _next_start(execution)) is not None:
            execution.attempt(before)
        server.drain()
    return run.write("execute", _record(execution, time.monotonic() - started))


def _next_start(execution: Execution) -> Before | None:
    """What comes before the start that is due; None if the agent's part is over."""
    run = execution.run
    starts, ends = run.ledger.events(AgentStarted), run.ledger.events(AgentEnded)
    if not ends:
        return Before()
    last, trial = ends[-1], starts[-1].trial
    if last.reason in CUT_OFF:
        account = execution.account(last.attempt)
        return Before("interrupted", trial, account.words, account.session)
    goes_on = last.reason in {"finished", "deadline"} and trial < run.spec.trials
    if goes_on and not run.ledger.events(ProcessesSurvived) and run.clock.remaining_s() > MIN_TRIAL_S:
        return Before("finished", trial + 1, execution.account(last.attempt).words)
    return None


def _close_lost_attempt(run: RunDir) -> None:
    """An attempt that was started and never ended died with the pipeline; its end is recorded now.

    What it has used of its budget meanwhile is charged: all the time if its processes are found alive, else up to the
    last change that they made in the workspace.
    """
    starts, ends = run.ledger.events(AgentStarted), run.ledger.events(AgentEnded)
    if len(starts) > len(ends):
        attempt, trace = starts[-1].attempt, run.logs / TRACE
        still_ran = is_anything_left(trace)
        if survivors := end_strays(trace):
            run.ledger.append(ProcessesSurvived(attempt=attempt, processes=survivors))
        run.clock.make_up(still_ran, last_change_at=_last_change(run.workspace))
        close_attempt(run, attempt, Ended("lost"))


def _last_change(workspace: Path) -> float:
    """When something below a folder was last changed (Unix time), by the kernel's own mark, which nobody can set.

    Infinite where an agent has left more there than can be looked at, or something that cannot.
    """
    latest, seen, folders = 0.0, 0, [str(workspace)]
    try:
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    latest, seen = max(latest, entry.stat(follow_symlinks=False).st_ctime), seen + 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
            if seen > MAX_SIGNS:
                return math.inf
    except OSError:
        return math.inf
    return latest


def _record(execution: Execution, seconds: float) -> ExecuteRecord:
    run = execution.run
    end, entries = run.ledger.events(AgentEnded)[-1], run.ledger.entries()
    return ExecuteRecord.model_validate(
        {
            "seconds": seconds,
            "ended": end.reason,
            "exit_code": end.exit_code,
            "why": end.why,
            "usage": execution.account(end.attempt).usage,
            "seen": llm_use(run),
            "elapsed_s": end.elapsed_s,
            "waited_s": waited_s(entries, end.elapsed_s),
            "refunded_s": refund_s(run.clock.state),
            "attempts": end.attempt,
            "submissions": sum(isinstance(entry.event, SubmissionAccepted) for entry in entries),
            "refused": sum(entry.event.count for entry in entries if isinstance(entry.event, SubmissionRefused)),
        }
    )
