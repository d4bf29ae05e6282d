"""One start of an agent, from its command line to the line in the ledger that says how it ended."""

import errno
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from a2rl.account import Account, read_account
from a2rl.agent import Agent
from a2rl.background import Background, pipeline_log
from a2rl.briefing import Before, brief
from a2rl.conversation import Conversation
from a2rl.errors import A2rlError, Interrupted, SpoiledWorkspace
from a2rl.events import AgentEnded, AgentStarted, ProcessesSurvived, RunInterrupted
from a2rl.gateway import Gateway
from a2rl.grading.server_process import GradingServer
from a2rl.installation import Installation
from a2rl.isolation.strays import Trace
from a2rl.launch import launch
from a2rl.load import GpuWatch, TreeLoad
from a2rl.meter import Meter
from a2rl.observer_process import Observer
from a2rl.process import TRACE, AgentProcess
from a2rl.run import RunDir
from a2rl.settings import Settings
from a2rl.supervisor import AgentCommand
from a2rl.watch import TICK_S, Watched, watch
from a2rl.workspace import write_run_meta

SPOILED = {
    errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY,
}  # fmt: skip
"""What the system says of folders that an agent has locked, removed or replaced; a full or broken disk is no such."""


UNCOUNTED = "what it uses of its quota could not be counted any more: reading its transcript failed again and again"


class Ended(NamedTuple):
    """How an attempt ended."""

    reason: str
    exit_code: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Execution:
    """The agent's part of a run, with what it takes.

    Args:
        observe: called about twice a second, in a thread of its own, to mirror what is new elsewhere.
    """

    run: RunDir
    agent: Agent
    settings: Settings
    server: GradingServer
    observe: Callable[[RunDir], None]
    accounts: dict[int, Account] = field(default_factory=dict)

    def account(self, attempt: int, exit_code: int | None = None) -> Account:
        """The agent system's own, of one of its attempts; read once."""
        if attempt not in self.accounts:
            self.accounts[attempt] = read_account(self.run, self.agent, self.settings, attempt, exit_code)
        return self.accounts[attempt]

    def attempt(self, before: Before) -> None:
        """Starts the agent and writes into the ledger how it ended.

        Raises:
            Interrupted: the user stopped the pipeline; the agent is gone, and the ledger says so.
            A2rlError: the machine failed; the attempt is closed as lost, and calling this again goes on.
        """
        run, clock = self.run, self.run.clock
        attempt = len(run.ledger.events(AgentStarted)) + 1
        started = AgentStarted(attempt=attempt, elapsed_s=clock.elapsed_s(), trial=before.trial)
        left_s = clock.remaining_s()
        # Trials share what is left evenly; what one does not use is the next one's.
        share_s = left_s / (run.spec.trials - before.trial + 1)
        with Gateway(run, self.agent, self.settings) as gateway:
            prompt = brief(run, self.agent, share_s, before) if self.agent.calls_llm else ""
            command = self._prepare(gateway, attempt, prompt, before.session, left_s)
            if isinstance(command, Ended):
                run.ledger.append(started)
                close_attempt(run, attempt, command)
                return
            clock.start()
            run.ledger.append(started)
            try:
                ended = self._work(command, attempt, prompt, share_s, left_s)
            except BaseException as error:
                _close_after(run, attempt, error)
                raise
        clock.stop()
        close_attempt(run, attempt, ended)

    def _prepare(
        self, gateway: Gateway, attempt: int, prompt: str, session: str | None, left_s: float
    ) -> AgentCommand | Ended:
        """The command of a start; or why there can be none, where that is a result."""
        run = self.run
        if missing := Installation(self.agent, self.settings).missing(run.spec.base_url):
            return Ended("unavailable", why="; ".join(missing))
        try:
            tell_agent(run, left_s)
            return launch(run, self.agent, self.settings, self.server, gateway, attempt, prompt, session)
        except (A2rlError, OSError) as error:
            spoiled = isinstance(error, SpoiledWorkspace) or _errno(error) in SPOILED
            if attempt == 1 or not spoiled:
                raise
            return Ended("unavailable", why=f"it has made its own folder unusable: {error}")

    def _work(self, command: AgentCommand, attempt: int, prompt: str, share_s: float, left_s: float) -> Ended:
        """Runs the agent's processes from start to end, and writes down what they do."""
        run = self.run
        with ExitStack() as stack:
            process = stack.enter_context(AgentProcess(command, self.settings))
            observer = stack.enter_context(Observer(run, self.settings, attempt, process.root))
            # Whatever happens, the agent ends first: then the observer takes its last look.
            stack.callback(lambda: process.stop() if process.is_running else None)
            reason, exited = self._watch(process, observer, prompt, share_s, left_s)
            uncounted = observer.is_given_up
        if exited.survivors:
            run.ledger.append(ProcessesSurvived(attempt=attempt, processes=exited.survivors))
        if exited.error:
            with (run.logs / "agent.log").open("a", encoding="utf-8") as log:
                log.write(f"[a2rl: the agent could not be started: {exited.error}]\n")
            return Ended(reason, exited.exit_code, f"it could not be started: {exited.error}")
        if exited.stopped:
            return Ended("crashed", exited.exit_code, f"it was ended: {exited.stopped}")
        why = self._why(attempt, reason, exited.exit_code)
        return Ended(reason, exited.exit_code, UNCOUNTED if reason == "quota" and uncounted else why)

    def _watch(self, process: AgentProcess, observer: Observer, prompt: str, share_s: float, left_s: float) -> Watched:
        """Watches the deadline; all that may take time goes on in threads beside it."""
        run, log = self.run, pipeline_log(self.run)
        gpus = GpuWatch()
        load = TreeLoad(process.root, lambda: _control_groups(run), gpus.pids)
        meter = Meter(run, load, reserved_s=left_s - share_s)
        conversation = Conversation(self.agent, process.send, process.end_input, prompt, share_s)

        def look() -> None:
            self.server.keep_alive()
            observer.keep_alive()
            conversation.look(meter.left_s(), observer.has_heard_an_answer)

        with ExitStack() as stack:
            stack.callback(gpus.close)
            stack.enter_context(Background("the clock", meter.look, _soon, log))
            stack.enter_context(Background("mirroring", lambda: self.observe(run), _soon, log))
            return watch(process, meter.left_s, lambda: observer.quota_is_spent, look)

    def _why(self, attempt: int, reason: str, exit_code: int | None) -> str:
        """In plain words, what an agent system itself says of its end."""
        told = self.account(attempt, exit_code).why
        if reason == "quota":
            return "its quota of tokens or cost was used up"
        if reason != "crashed" and self.agent.transcript is None:
            return ""
        known = self.agent.exits.get(exit_code) if exit_code is not None else None
        return (told if reason != "deadline" else "") or known or ""


def close_attempt(run: RunDir, attempt: int, ended: Ended) -> None:
    """Writes into the ledger how it ended."""
    run.ledger.append(
        AgentEnded(
            attempt=attempt,
            elapsed_s=run.clock.elapsed_s(),
            reason=ended.reason,
            exit_code=ended.exit_code,
            why=ended.why,
        )
    )


def _close_after(run: RunDir, attempt: int, error: BaseException) -> None:
    """Closes an attempt that was broken off: by the user, or by what failed on this machine."""
    run.clock.stop()
    if isinstance(error, Exception) and not isinstance(error, Interrupted):
        close_attempt(run, attempt, Ended("lost", why=str(error)))
        return
    close_attempt(run, attempt, Ended("interrupted"))
    run.ledger.append(RunInterrupted(stage="execute"))


def tell_agent(run: RunDir, remaining_s: float) -> None:
    """Writes `run_meta.json` into the workspace."""
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


def _control_groups(run: RunDir) -> list[Path]:
    """Of the agent that is at work; none where there can be none, or before it is started."""
    trace = Trace.read(run.logs / TRACE)
    return [Path(folder) for folder in trace.group.folders] if trace is not None else []


def _soon() -> float:
    """About a tick; an agent cannot know when it is looked at."""
    return random.uniform(0.5, 1.5) * TICK_S


def _errno(error: BaseException | None) -> int | None:
    """Of the system's error behind an error of ours."""
    while error is not None:
        if isinstance(error, OSError):
            return error.errno
        error = error.__cause__
    return None
