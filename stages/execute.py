"""Stage `execute`: the agent works until it ends or its budget does, with the grading service beside it.

Whatever the agent does is a result: that it crashed, ran out of time or submitted nothing is recorded, never retried.
"""

import time
from collections.abc import Callable

from a2rl.budget import waited_s
from a2rl.catalog import find_agent
from a2rl.errors import Interrupted
from a2rl.events import AgentEnded, AgentStarted, RunInterrupted, SubmissionAccepted, SubmissionRefused
from a2rl.grading.server_process import GradingServer
from a2rl.isolation.reach import confinement_of
from a2rl.process import AgentProcess, check_stop, end_strays
from a2rl.records import ExecuteRecord
from a2rl.run import RunDir
from a2rl.settings import Settings
from a2rl.supervisor import AgentCommand, AgentExit
from a2rl.workspace import agent_environment, write_run_meta

TICK_S = 0.5
FINAL = {"finished", "crashed", "deadline"}


def execute(run: RunDir, settings: Settings, observe: Callable[[RunDir], None] = lambda run: None) -> ExecuteRecord:
    """Runs the agent, or goes on with it where an earlier attempt was cut off.

    Args:
        run: a run whose baseline is known.
        settings: this checkout.
        observe: called about twice a second, to mirror what is new elsewhere.

    Raises:
        Interrupted: the user stopped the pipeline; the agent is gone and the run can be resumed.
        InfrastructureError: the grading service or the supervisor failed.
    """
    if (done := run.read("execute", ExecuteRecord)) is not None:
        return done
    started = time.monotonic()
    _close_lost_attempt(run)
    with GradingServer(run, settings) as server:
        server.wait_until_ready()
        if _final_end(run) is None:
            _run_agent(run, settings, server, observe)
        server.drain()
    observe(run)
    return run.write("execute", _record(run, time.monotonic() - started))


def _run_agent(run: RunDir, settings: Settings, server: GradingServer, observe: Callable[[RunDir], None]) -> None:
    agent, clock = find_agent(run.spec.agent, settings.root), run.clock
    attempt = len(run.ledger.events(AgentStarted)) + 1
    remaining_s = clock.remaining_s(run.ledger.entries())
    _tell_agent(run, remaining_s)
    command = AgentCommand(
        agent.command(),
        str(run.workspace),
        agent_environment(run, agent, server.url, settings),
        str(run.logs / "agent.log"),
        confinement_of(run, agent, settings, connect=(server.port,)),
    )
    clock.start()
    run.ledger.append(AgentStarted(attempt=attempt, elapsed_s=clock.elapsed_s()))
    try:
        with AgentProcess(command, settings) as process:
            reason, ended = _watch(run, process, server, observe)
    except Interrupted:
        clock.stop()
        run.ledger.append(
            AgentEnded(attempt=attempt, elapsed_s=clock.elapsed_s(), reason="interrupted", exit_code=None)
        )
        run.ledger.append(RunInterrupted(stage="execute"))
        raise
    clock.stop()
    if ended.error:
        (run.logs / "agent.log").open("a", encoding="utf-8").write(
            f"[a2rl: the agent could not be started: {ended.error}]\n"
        )
    run.ledger.append(
        AgentEnded(attempt=attempt, elapsed_s=clock.elapsed_s(), reason=reason, exit_code=ended.exit_code)
    )


def _watch(
    run: RunDir, process: AgentProcess, server: GradingServer, observe: Callable[[RunDir], None]
) -> tuple[str, AgentExit]:
    while True:
        check_stop()
        server.keep_alive()
        run.clock.heartbeat()
        left = run.clock.remaining_s(run.ledger.entries())
        if left <= 0:
            return "deadline", process.stop()
        if (ended := process.wait(min(TICK_S, left))) is not None:
            return ("finished" if ended.exit_code == 0 else "crashed"), ended
        observe(run)


def _tell_agent(run: RunDir, remaining_s: float) -> None:
    now, spec = time.time(), run.spec
    write_run_meta(
        run,
        start_time=int(now - (spec.budget_s - remaining_s)),
        timeout_s=int(spec.budget_s),
        end_time=int(now + remaining_s),
        last_submit_time=None,
        task=spec.task,
        mode=spec.mode,
        seed=spec.seed,
        driver=spec.driver,
    )


def _close_lost_attempt(run: RunDir) -> None:
    """An attempt that was started and never ended died with the pipeline; its end is recorded now."""
    starts, ends = run.ledger.events(AgentStarted), run.ledger.events(AgentEnded)
    if len(starts) > len(ends):
        end_strays(str(run.workspace))
        run.clock.abandon()
        lost = AgentEnded(attempt=starts[-1].attempt, elapsed_s=run.clock.elapsed_s(), reason="lost", exit_code=None)
        run.ledger.append(lost)


def _final_end(run: RunDir) -> AgentEnded | None:
    ends = run.ledger.events(AgentEnded)
    return ends[-1] if ends and ends[-1].reason in FINAL else None


def _record(run: RunDir, seconds: float) -> ExecuteRecord:
    end, entries = _final_end(run), run.ledger.entries()
    assert end is not None
    return ExecuteRecord.model_validate(
        {
            "seconds": seconds,
            "ended": end.reason,
            "exit_code": end.exit_code,
            "elapsed_s": end.elapsed_s,
            "waited_s": waited_s(entries, end.elapsed_s),
            "attempts": end.attempt,
            "submissions": sum(isinstance(entry.event, SubmissionAccepted) for entry in entries),
            "refused": sum(isinstance(entry.event, SubmissionRefused) for entry in entries),
        }
    )
