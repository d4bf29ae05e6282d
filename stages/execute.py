"""Stage `execute`: the agent works until it ends or its budget is used up, while the grading service runs.

Whatever the agent does is a result: a crash, a timeout or no submission is recorded and never retried. `execute` shows
the order of events; `a2rl.execution.attempt` starts the agent once, and `a2rl.grading.service_process` owns the
service.
"""

import time

from a2rl.agent_systems.definition import find_agent, recorded_agent
from a2rl.agent_systems.transcripts.ending import SESSION_GONE
from a2rl.core.settings import Settings
from a2rl.execution.attempt import Attempts, close_lost_attempt
from a2rl.execution.prompt import StartContext
from a2rl.grading.service_process import ServiceProcess
from a2rl.llm.keys import register_run_secrets
from a2rl.llm.relay.request_log import read_llm_use, tokens_at_submissions
from a2rl.recording.trajectory import keep_summary
from a2rl.run.budget import refund_s, waited_s
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, ProcessesSurvived, SubmissionAccepted, SubmissionRefused
from a2rl.run.gpu_share import check_gpus
from a2rl.run.inputs import check_inputs
from a2rl.run.ledger import events_of
from a2rl.run.records import ExecuteRecord

RESUMABLE = {"interrupted", "lost"}
"""Attempts that ended for one of these reasons are continued."""
MIN_TRIAL_S = 30.0
"""Mode `multi` starts no further trial if less time than this is left."""


def execute(run: RunDir, settings: Settings) -> ExecuteRecord:
    """Runs the agent, or continues its work after an interruption.

    Args:
        run: A run whose baseline is known.

    Raises:
        InterruptedByUserError: The user stopped the pipeline; the agent has ended and the run can be resumed.
        InfrastructureError: The grading service or the supervisor failed.
    """
    register_run_secrets(recorded_agent(run.spec.agent, settings.root), settings)
    if (done := run.read("execute", ExecuteRecord)) is not None:
        return done
    agent = find_agent(run.spec.agent, settings.root)
    started = time.monotonic()
    close_lost_attempt(run)
    check_inputs(run)
    check_gpus(run, settings)
    with ServiceProcess(run, settings) as server:
        server.wait_until_ready()
        attempts = Attempts(run, agent, settings, server)
        while (context := _next_start(attempts)) is not None:
            attempts.run_once(context)
        server.drain()
    keep_summary(run)
    return run.write("execute", _record(attempts, time.monotonic() - started))


def _next_start(attempts: Attempts) -> StartContext | None:
    """Returns the context of the next start; None if the agent's work is over."""
    run = attempts.run
    starts, ends = run.ledger.events(AgentStarted), run.ledger.events(AgentEnded)
    if not ends:
        return StartContext()
    last, trial = ends[-1], starts[-1].trial
    if last.reason in RESUMABLE:
        summary = attempts.summary(last.attempt)
        return StartContext("interrupted", trial, summary.last_message, summary.session)
    if last.why.startswith(SESSION_GONE) and len(ends) > 1 and ends[-2].reason in RESUMABLE:
        # Another machine has taken over the run, or the agent has removed its session: it begins a new one, once.
        return StartContext("interrupted", trial, attempts.summary(ends[-2].attempt).last_message)
    has_next_trial = last.reason in {"finished", "deadline"} and trial < run.spec.trials
    if has_next_trial and not run.ledger.events(ProcessesSurvived) and run.clock.remaining_s() > MIN_TRIAL_S:
        return StartContext("finished", trial + 1, attempts.summary(last.attempt).last_message)
    return None


def _record(attempts: Attempts, seconds: float) -> ExecuteRecord:
    run = attempts.run
    end, entries = run.ledger.events(AgentEnded)[-1], run.ledger.entries()
    clock = run.clock.read_state()
    return ExecuteRecord.model_validate(
        {
            "seconds": seconds,
            "ended": end.reason,
            "exit_code": end.exit_code,
            "why": end.why,
            "responsible": end.responsible,
            "usage": attempts.summary(end.attempt).usage,
            "seen": read_llm_use(run),
            "tokens_at": tokens_at_submissions(run, entries),
            "elapsed_s": end.elapsed_s,
            "waited_s": waited_s(entries, end.elapsed_s),
            "refunded_s": refund_s(clock),
            "stood_still_s": clock.stood_still_s,
            "attempts": end.attempt,
            "submissions": len(events_of(entries, SubmissionAccepted)),
            "refused": sum(event.count for event in events_of(entries, SubmissionRefused)),
        }
    )
