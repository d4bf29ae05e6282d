"""One attempt: a start of the agent, from its command line to the ledger entry that says how it ended.

`Attempts.run_once` does all of it: it prepares the command, starts the clock, supervises the processes and records the
end.
"""

import errno
import json
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from a2rl.agent_systems.definition import Agent
from a2rl.agent_systems.installation import Installation
from a2rl.agent_systems.transcripts.ending import Responsible, ending
from a2rl.core.errors import A2rlError, InfrastructureError, InterruptedByUserError, SpoiledWorkspaceError
from a2rl.core.event_log import Background, EventLog
from a2rl.core.settings import Settings
from a2rl.execution.command import Attempt, agent_command
from a2rl.execution.compute import GpuWatch, TreeLoad
from a2rl.execution.deadline import TICK_S, RemainingTime, WatchResult, heed_shutdown, watch
from a2rl.execution.observer import TranscriptSummary, observing, transcript_summary
from a2rl.execution.prompt import StartContext, render_prompt
from a2rl.execution.workspace import last_change, write_into_workspace
from a2rl.grading.answers import RUN_META, RUN_META_MODE, run_meta
from a2rl.grading.service_process import ServiceProcess
from a2rl.linux.orphans import TRACE, ProcessTrace, end_orphans, has_orphans
from a2rl.llm.gateway import PROXY_LOG, Gateway
from a2rl.llm.relay.request_log import FULL as REQUESTS_FULL
from a2rl.llm.relay.request_log import RequestLogReader, failed_requests, limit_reached, request_log_path
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir, pipeline_log
from a2rl.run.events import AgentEnded, AgentStarted, ProcessesSurvived, RunInterrupted
from a2rl.run.gpu_share import share_of
from a2rl.sandbox.agent_log import last_lines
from a2rl.sandbox.command import AgentCommand
from a2rl.sandbox.process import AgentProcess
from a2rl.sandbox.storage import FULL

WORKSPACE_ERRORS = {
    errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY,
}  # fmt: skip
"""System errors caused by folders that an agent has locked, removed or replaced. A full or broken disk causes other
errors."""
NOT_STARTED = "the agent could not be started"
"""How the reason begins if an attempt was lost before the agent had done anything."""
WARN_AT = (0.8, 0.95)
"""Shares of the attempt's time after which the agent is warned."""


class AgentMessages:
    """Messages to agent systems that accept them while they work: the prompt, then warnings about the remaining time.

    It does nothing for agents that accept none: they get their prompt on the command line and can ask `/time`. A
    message that arrives while a tool runs is read together with the tool's result. After an answer, the agent system
    waits for further messages, so its input is closed at its first answer."""

    def __init__(
        self, agent: Agent, send: Callable[[str], None], end: Callable[[], None], prompt: str, time_s: float
    ) -> None:
        self._takes_messages = agent.messages is not None
        self._send = send
        self._end = end
        self._time_s = time_s
        self._unsent = [prompt]
        self._due_warnings = list(WARN_AT)
        self._is_over = False

    def update(self, left_s: float, has_answered: bool) -> None:
        """Sends the messages that are due; call it often, it returns at once."""
        if not self._takes_messages or self._is_over:
            return
        while self._unsent:
            self._send_text(self._unsent.pop())
        if has_answered:
            self._is_over = True
            self._end()
            return
        while self._due_warnings and left_s <= (1 - self._due_warnings[0]) * self._time_s:
            share, left = self._due_warnings.pop(0), format_duration(max(0.0, left_s))
            self._send_text(
                f"{share:.0%} of your time has passed: you have {left} left, then everything you have started is "
                "killed. Work that is not submitted by then is lost."
            )

    def _send_text(self, text: str) -> None:
        self._send(json.dumps({"type": "user", "message": {"role": "user", "content": text}}))


class UsageLimits:
    """Checks what an agent has used against the limits of its run, and the records of its requests for room.

    The limits apply to what the relay measured, which refuses further requests as soon as one is reached. The agent is
    ended soon afterwards.
    """

    def __init__(self, run: RunDir) -> None:
        self._spec, self._seen = run.spec, RequestLogReader(request_log_path(run))
        self._requests, self._connections = EventLog(request_log_path(run)), EventLog(run.logs / PROXY_LOG)
        self.reached = ""
        """Which limit is reached, in words; empty if none."""

    def are_reached(self) -> bool:
        """Looks at what is new, and says whether a limit is reached."""
        self.reached = limit_reached(self._seen.read(), self._spec.max_tokens, self._spec.max_cost_usd)
        if self._requests.is_full:
            self.reached = REQUESTS_FULL
        elif self._connections.is_full:
            self.reached = f"the record of connections to other hosts (logs/{PROXY_LOG}) is full, so no more are made"
        return bool(self.reached)


class AttemptEnd(NamedTuple):
    """How an attempt ended."""

    reason: str
    exit_code: int | None = None
    why: str = ""
    responsible: Responsible = "unknown"


@dataclass(frozen=True)
class Attempts:
    """Runs the attempts of one run, one at a time."""

    run: RunDir
    agent: Agent
    settings: Settings
    server: ServiceProcess
    _summaries: dict[int, TranscriptSummary] = field(default_factory=dict)

    def run_once(self, context: StartContext) -> None:
        """Runs the agent once and records in the ledger how it ended.

        Raises:
            InterruptedByUserError: The user stopped the pipeline; the agent has ended, and the ledger says so.
            A2rlError: The machine failed; the attempt is closed as lost, and a further call continues the run.
        """
        run, attempt = self.run, self._next_attempt(context)
        started = AgentStarted(attempt=attempt.number, elapsed_s=run.clock.elapsed_s(), trial=context.trial)
        with Gateway(run, self.agent, self.settings) as gateway:
            command = self._prepare(gateway, attempt)
            if isinstance(command, AttemptEnd):
                run.ledger.append(started)
                close_attempt(run, attempt.number, command)
                return
            run.ledger.append(started)  # before the clock starts: a clock that runs without an attempt is never stopped
            try:
                run.clock.start()
                end = self._run_processes(command, attempt)
            except BaseException as error:  # including KeyboardInterrupt: the attempt must be closed in any case
                _close_after(run, attempt.number, error)
                raise
        close_attempt(run, attempt.number, end)

    def summary(self, attempt: int) -> TranscriptSummary:
        """Returns the summary of an attempt's transcript, which is read once."""
        if attempt not in self._summaries:
            self._summaries[attempt] = transcript_summary(self.run, self.agent, self.settings, attempt)
        return self._summaries[attempt]

    def _next_attempt(self, context: StartContext) -> Attempt:
        """Divides the remaining time evenly among the trials. Time that a trial does not use goes to the next ones."""
        left_s = self.run.clock.remaining_s()
        time_s = left_s / (self.run.spec.trials - context.trial + 1)
        return Attempt(
            number=len(self.run.ledger.events(AgentStarted)) + 1,
            prompt=render_prompt(self.run, self.agent, time_s, context) if self.agent.calls_llm else "",
            session=context.session,
            time_s=time_s,
            reserved_s=left_s - time_s,
        )

    def _prepare(self, gateway: Gateway, attempt: Attempt) -> AgentCommand | AttemptEnd:
        """Returns the command of the start, or the end of the attempt if the agent cannot be started."""
        run = self.run
        if missing := Installation(self.agent, self.settings).missing(run.spec.base_url):
            return AttemptEnd("unavailable", why="; ".join(missing), responsible="machine")
        try:
            write_into_workspace(run.workspace, {RUN_META: run_meta(run, self.settings.environ)}, RUN_META_MODE)
            return agent_command(run, self.agent, self.settings, self.server, gateway, attempt)
        except (A2rlError, OSError) as error:
            # In a later attempt, the agent itself may have made its workspace unusable; that is a result.
            if attempt.number == 1 or not _is_agents_doing(error, run):
                raise
            why = f"it has made its own folder unusable: {error}"
            return AttemptEnd("unavailable", why=why, responsible="agent")

    def _run_processes(self, command: AgentCommand, attempt: Attempt) -> AttemptEnd:
        """Runs the agent's processes from start to end, while the observer watches."""
        log = self.run.agent_log
        log_start = log.stat().st_size if log.exists() else 0
        with ExitStack() as stack:
            process = stack.enter_context(AgentProcess(command, self.settings))
            answered = stack.enter_context(observing(self.run, self.settings, attempt.number, process.root))
            # The agent always ends before the observer, so that the observer sees the final state of its files.
            stack.callback(_stop_if_running, process)
            limits = UsageLimits(self.run)
            result = self._supervise(process, answered, limits, attempt)
            self.run.clock.stop()  # the last look at its files, and reading its transcript, are not the agent's time
            heed_shutdown()
        return self._end_of(result, attempt.number, limits.reached, log_start)

    def _supervise(
        self, process: AgentProcess, answered: threading.Event, limits: UsageLimits, attempt: Attempt
    ) -> WatchResult:
        """Enforces deadline and quota in this thread. Everything that may take time runs in other threads."""
        run, log = self.run, pipeline_log(self.run)
        gpus = GpuWatch([gpu.uuid for gpu in share_of(run, self.settings).all])
        load = TreeLoad(process.root, lambda: _control_groups(run), gpus.busy_pids)
        remaining = RemainingTime(run, load, attempt.reserved_s)
        messages = AgentMessages(self.agent, process.send, process.end_input, attempt.prompt, attempt.time_s)

        def on_tick() -> None:
            self.server.keep_alive()
            if gpus.lost:  # whatever the agent does without it is not its result
                raise InfrastructureError(f"{gpus.lost}; `a2rl resume {run.id}` continues on the GPUs that are left")
            messages.update(remaining.left_s(), answered.is_set())

        with ExitStack() as stack:
            stack.callback(gpus.close)
            stack.enter_context(Background("the clock", remaining.update, _random_pause_s, log))
            return watch(process, remaining.left_s, limits.are_reached, on_tick)

    def _end_of(self, result: WatchResult, attempt: int, limit: str, log_start: int) -> AttemptEnd:
        """Records surviving processes and says how the attempt ended."""
        reason, exited = result
        if exited.survivors:
            self.run.ledger.append(ProcessesSurvived(attempt=attempt, processes=exited.survivors))
        if exited.error:
            with self.run.agent_log.open("a", encoding="utf-8") as log:
                log.write(f"[a2rl: the agent could not be started: {exited.error}]\n")
            ends = self.run.ledger.events(AgentEnded)
            if all(end.reason == "lost" and end.why.startswith(NOT_STARTED) for end in ends):  # it has done nothing yet
                raise InfrastructureError(f"{NOT_STARTED}: {exited.error}")
            return AttemptEnd(reason, exited.exit_code, f"it could not be started: {exited.error}", "machine")
        if exited.stopped:
            responsible: Responsible = "unknown" if exited.stopped == FULL else "agent"  # others fill it, too
            return AttemptEnd("crashed", exited.exit_code, f"it was ended: {exited.stopped}", responsible)
        if reason == "quota":
            return AttemptEnd(reason, exited.exit_code, limit, "agent")
        lines = last_lines(self.run.agent_log, log_start)
        failed = failed_requests(self.run) if self.agent.may_call_llm else []  # without an LLM, no API can be to blame
        end = ending(reason, exited.exit_code, self.summary(attempt).account, lines, failed, self.agent.exits)
        return AttemptEnd(end.reason, exited.exit_code, end.why, end.responsible)


def close_attempt(run: RunDir, attempt: int, end: AttemptEnd) -> None:
    """Records in the ledger how an attempt ended."""
    run.ledger.append(AgentEnded(attempt=attempt, elapsed_s=run.clock.elapsed_s(), **end._asdict()))


def _close_after(run: RunDir, attempt: int, error: BaseException) -> None:
    """Closes an attempt that was stopped by the user or by a failure of this machine."""
    run.clock.stop()
    if isinstance(error, Exception) and not isinstance(error, InterruptedByUserError):
        close_attempt(run, attempt, AttemptEnd("lost", why=str(error)))
        return
    close_attempt(run, attempt, AttemptEnd("interrupted"))
    run.ledger.append(RunInterrupted(stage="execute"))


def _stop_if_running(process: AgentProcess) -> None:
    if process.is_running:
        process.stop()


def _control_groups(run: RunDir) -> list[Path]:
    """Returns the running agent's control groups; none before it is started, or if there are no control groups."""
    trace = ProcessTrace.read(run.logs / TRACE)
    return [Path(folder) for folder in trace.group.folders] if trace is not None else []


def _random_pause_s() -> float:
    """Returns a pause of about a tick. It is random, so that the agent cannot know when it is sampled."""
    return random.uniform(0.5, 1.5) * TICK_S


def _is_agents_doing(error: BaseException | None, run: RunDir) -> bool:
    """Says whether an error comes from what an agent has done to its workspace; one at a path elsewhere does not."""
    while error is not None and not isinstance(error, (SpoiledWorkspaceError, OSError)):
        error = error.__cause__
    if not isinstance(error, OSError):
        return error is not None
    path = Path(error.filename) if isinstance(error.filename, str) else Path()
    workspaces = (run.workspace, run.root.resolve() / run.workspace.name)
    is_elsewhere = path.is_absolute() and not any(path.is_relative_to(each) for each in workspaces)
    return error.errno in WORKSPACE_ERRORS and not is_elsewhere


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
