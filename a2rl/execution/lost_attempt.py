"""Recovers an attempt whose pipeline died: its processes are killed and its time is charged."""

from a2rl.execution.attempt import AttemptEnd, close_attempt
from a2rl.execution.last_change import last_change
from a2rl.linux.orphans import end_orphans, has_orphans
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, ProcessesSurvived
from a2rl.sandbox.process import TRACE


def close_lost_attempt(run: RunDir) -> None:
    """Closes an attempt that was started and never ended, because the pipeline died; does nothing if there is none.

    The budget is charged for the time that the agent used since the last heartbeat: all of it if its processes are
    still alive, or else up to the last change that they made in the workspace.
    """
    starts, ends = run.ledger.events(AgentStarted), run.ledger.events(AgentEnded)
    if len(starts) <= len(ends):
        return
    attempt, trace = starts[-1].attempt, run.logs / TRACE
    still_ran = has_orphans(trace)
    if survivors := end_orphans(trace):
        run.ledger.append(ProcessesSurvived(attempt=attempt, processes=survivors))
    run.clock.close_lost_segment(still_ran, last_change_at=last_change(run.workspace))
    close_attempt(run, attempt, AttemptEnd("lost"))
