"""Stage `execute`: the agent works until it ends or its budget does, with the grading service beside it.

Whatever the agent does is a result: that it crashed, ran out of time or submitted nothing is recorded, never retried.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from a2rl.agent import Agent
from a2rl.briefing import Before, brief
from a2rl.budget import waited_s
from a2rl.catalog import find_agent
from a2rl.conversation import Conversation
from a2rl.errors import Interrupted
from a2rl.events import AgentEnded, AgentStarted, RunInterrupted, SubmissionAccepted, SubmissionRefused
from a2rl.grading.server_process import GradingServer
from a2rl.inputs import check_inputs
from a2rl.installation import Installation
from a2rl.isolation.strays import end_strays
from a2rl.launch import Gateway, launch
from a2rl.process import TRACE, AgentProcess, check_stop
from a2rl.quota import Quota
from a2rl.recorder import Recorder
from a2rl.records import ExecuteRecord
from a2rl.run import RunDir
from a2rl.settings import Settings
from a2rl.supervisor import AgentCommand, AgentExit
from a2rl.trajectory import last_words, read_attempt, write_trajectory
from a2rl.transcripts import why
from a2rl.workspace import write_run_meta

TICK_S = 0.5
CUT_OFF = {"interrupted", "lost"}
"""How an attempt ends that is gone on with."""
MIN_TRIAL_S = 30.0
"""With less than that left, mode `multi` starts no further trial."""


class Ended(NamedTuple):
    """How an attempt ended."""

    reason: str
    exit_code: int | None = None
    why: str = ""


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
    started, agent = time.monotonic(), find_agent(run.spec.agent, settings.root)
    _close_lost_attempt(run)
    check_inputs(run)
    with GradingServer(run, settings) as server:
        server.wait_until_ready()
        execution = Execution(run, agent, settings, server, observe)
        while (before := _next_start(run, agent)) is not None:
            execution.attempt(before)
        server.drain()
    observe(run)
    return run.write("execute", _record(run, agent, settings, time.monotonic() - started))


def _next_start(run: RunDir, agent: Agent) -> Before | None:
    """What comes before the start that is due; None if the agent's part is over."""
    starts, ends = run.ledger.events(AgentStarted), run.ledger.events(AgentEnded)
    if not ends:
        return Before()
    last, trial = ends[-1], starts[-1].trial
    if last.reason in CUT_OFF:
        reading = read_attempt(run, agent, last.attempt)
        return Before("interrupted", trial, last_words(reading), reading.session_id)
    goes_on = last.reason in {"finished", "deadline"} and trial < run.spec.trials
    if goes_on and run.clock.remaining_s(run.ledger.entries()) > MIN_TRIAL_S:
        return Before("finished", trial + 1, last_words(read_attempt(run, agent, last.attempt)))
    return None


@dataclass(frozen=True)
class Execution:
    """The agent's part of a run, with what it takes."""

    run: RunDir
    agent: Agent
    settings: Settings
    server: GradingServer
    observe: Callable[[RunDir], None]

    def attempt(self, before: Before) -> None:
        """Starts the agent and writes into the ledger how it ended.

        Raises:
            Interrupted: the user stopped the pipeline; the agent is gone, and the ledger says so.
        """
        run, agent, clock = self.run, self.agent, self.run.clock
        attempt = len(run.ledger.events(AgentStarted)) + 1
        started = AgentStarted(attempt=attempt, elapsed_s=clock.elapsed_s(), trial=before.trial)
        if missing := Installation(agent, self.settings).missing(run.spec.base_url):
            run.ledger.append(started)
            _close(run, attempt, Ended("unavailable", why="; ".join(missing)))
            return
        left_s = clock.remaining_s(run.ledger.entries())
        # Trials share what is left evenly; what one does not use is the next one's.
        share_s = left_s / (run.spec.trials - before.trial + 1)
        _tell_agent(run, left_s)
        with Gateway(run, agent) as gateway:
            prompt = brief(run, agent, share_s, before) if agent.calls_llm else ""
            command = launch(run, agent, self.settings, self.server, gateway, attempt, prompt, before.session)
            clock.start()
            run.ledger.append(started)
            try:
                ended = self._work(command, attempt, prompt, share_s, left_s)
            except Interrupted:
                clock.stop()
                _close(run, attempt, Ended("interrupted"))
                run.ledger.append(RunInterrupted(stage="execute"))
                raise
        clock.stop()
        _close(run, attempt, ended)

    def _work(self, command: AgentCommand, attempt: int, prompt: str, share_s: float, left_s: float) -> Ended:
        """Runs the agent's processes from start to end, and writes down what they do."""
        run, agent = self.run, self.agent
        with AgentProcess(command, self.settings) as process:
            recorder = Recorder(run, agent, process.root, attempt)
            conversation = Conversation(agent, process, prompt, command.transcript, share_s)
            try:
                reason, exited = self._watch(process, recorder, conversation, left_s - share_s)
            finally:
                if process.is_running:
                    process.stop()
                recorder.close()
        if exited.error:
            with (run.logs / "agent.log").open("a", encoding="utf-8") as log:
                log.write(f"[a2rl: the agent could not be started: {exited.error}]\n")
            return Ended(reason, exited.exit_code, f"it could not be started: {exited.error}")
        if exited.stopped:
            return Ended("crashed", exited.exit_code, f"it was ended: {exited.stopped}")
        return Ended(reason, exited.exit_code, _why(run, agent, attempt, reason, exited.exit_code))

    def _watch(
        self, process: AgentProcess, recorder: Recorder, conversation: Conversation, reserved_s: float
    ) -> tuple[str, AgentExit]:
        """Returns when the agent has ended or was ended, and why it was.

        Args:
            reserved_s: what the run has left when this attempt must end.
        """
        run, quota = self.run, Quota(self.run, self.agent)
        while True:
            check_stop()
            self.server.keep_alive()
            run.clock.heartbeat()
            left_s = run.clock.remaining_s(run.ledger.entries()) - reserved_s
            if left_s <= 0:
                return "deadline", process.stop()
            if quota.is_spent():
                return "quota", process.stop()
            if (ended := process.wait(min(TICK_S, left_s))) is not None:
                return ("finished" if ended.exit_code == 0 else "crashed"), ended
            conversation.look(left_s)
            recorder.look()
            self.observe(run)


def _why(run: RunDir, agent: Agent, attempt: int, reason: str, exit_code: int | None) -> str:
    """In plain words, what an agent system itself says of its end."""
    if reason == "quota":
        return "its quota of tokens or cost was used up"
    if reason != "crashed" and agent.transcript is None:
        return ""
    known = agent.exits.get(exit_code) if exit_code is not None else None
    told = why(read_attempt(run, agent, attempt), exit_code) if agent.transcript and reason != "deadline" else None
    return told or known or ""


def _close(run: RunDir, attempt: int, ended: Ended) -> None:
    run.ledger.append(
        AgentEnded(
            attempt=attempt,
            elapsed_s=run.clock.elapsed_s(),
            reason=ended.reason,
            exit_code=ended.exit_code,
            why=ended.why,
        )
    )


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
        end_strays(run.logs / TRACE)
        run.clock.abandon()
        _close(run, starts[-1].attempt, Ended("lost"))


def _record(run: RunDir, agent: Agent, settings: Settings, seconds: float) -> ExecuteRecord:
    end, entries = run.ledger.events(AgentEnded)[-1], run.ledger.entries()
    return ExecuteRecord.model_validate(
        {
            "seconds": seconds,
            "ended": end.reason,
            "exit_code": end.exit_code,
            "why": end.why,
            "usage": write_trajectory(run, agent, Installation(agent, settings).version),
            "elapsed_s": end.elapsed_s,
            "waited_s": waited_s(entries, end.elapsed_s),
            "attempts": end.attempt,
            "submissions": sum(isinstance(entry.event, SubmissionAccepted) for entry in entries),
            "refused": sum(entry.event.count for entry in entries if isinstance(entry.event, SubmissionRefused)),
        }
    )
