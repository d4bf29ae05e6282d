"""Runs the Prefect flow from the command line, in this process, with an embedded server and without its messages, and
prints on the terminal what happens in its runs.

If the user has a Prefect server (PREFECT_API_URL is set), that one is used and its settings are left alone.
"""

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

from rich.console import Console
from rich.text import Text

from a2rl.cli.console import err, say_aside
from a2rl.cli.progress import GradingProgress
from a2rl.cli.results import sandbox_warning
from a2rl.cli.watching import Watcher, table_below
from a2rl.core.errors import A2rlError, InfrastructureError, InterruptedByUserError, RunFailedError, first_line
from a2rl.core.event_log import PeriodicThread, log_failure
from a2rl.core.locks import file_lock
from a2rl.core.printable import printable
from a2rl.core.processes import Child, RestartedChild
from a2rl.core.settings import Settings
from a2rl.core.urls import require_proxies
from a2rl.run.budget import format_duration
from a2rl.run.directory import ASIDE_LOG, RunDir
from a2rl.run.disk import format_bytes
from a2rl.run.events import (
    AgentEnded,
    AgentStarted,
    BaselineKnown,
    Event,
    Graded,
    GradingFailed,
    PrivateGraded,
    ProcessesSurvived,
    RunFailed,
    SubmissionAccepted,
    SubmissionRefused,
)
from a2rl.run.failure import is_unfinished, log_of
from a2rl.run.records import SetupRecord
from a2rl.sandbox.agent_log import last_lines

POLL_INTERVAL_S = 0.3
MAX_SHOWN = 400
"""The maximum number of characters of an agent's text in one line on the terminal."""


class Follower(PeriodicThread):
    """Prints what happens in some runs from now on, while a flow works on them in this process."""

    def __init__(self, runs: Sequence[RunDir], console: Console) -> None:
        super().__init__("following the runs", self._look, lambda: POLL_INTERVAL_S)
        self._runs, self._console = runs, console
        self._seen: dict[str, int] = {}
        self._numbers: dict[tuple[str, str], list[str]] = {}
        for run in runs:
            with suppress(A2rlError):  # as in `_look`
                self._new_events(run)
        self._progress = GradingProgress()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._look()

    def _look(self) -> None:
        for run in self._runs:
            with suppress(A2rlError):  # the process that works on the run reports it
                self._look_at(run)

    def _look_at(self, run: RunDir) -> None:
        for event in self._new_events(run):
            if text := self._describe(run, event):
                self._line(run, text)
        names = {
            run.checkpoint(digest).name: f"submission {', '.join(numbers)}"
            for (run_id, digest), numbers in self._numbers.items()
            if run_id == run.id
        }
        for line in self._progress.lines(run, names):
            self._line(run, Text(line, "dim"))

    def _line(self, run: RunDir, text: Text) -> None:
        clock = time.strftime("%H:%M:%S")
        self._console.print(Text.assemble((f"{clock} ", "dim"), (f"{run.id}  ", "cyan"), text), soft_wrap=True)

    def _new_events(self, run: RunDir) -> list[Event]:
        """Returns what has happened since the last call, and notes the numbers of submissions: what comes later names
        only their checkpoint."""
        entries = run.ledger.entries(after=self._seen.get(run.id, 0))
        for entry in entries:
            self._seen[run.id] = entry.seq
            if isinstance(event := entry.event, SubmissionAccepted):
                self._numbers.setdefault((run.id, event.weights_digest), []).append(str(event.submission_id))
        return [entry.event for entry in entries]

    def _describe(self, run: RunDir, event: Event) -> Text | None:  # noqa: PLR0911 - one line for each kind of event
        if isinstance(event, BaselineKnown):
            return Text(f"baseline {event.public}")
        if isinstance(event, AgentStarted):
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            sandbox = run.need("setup", SetupRecord).sandbox
            started = Text(f"agent {run.spec.agent} started{again}, sandbox {sandbox}")
            warning = sandbox_warning(sandbox)
            return Text.assemble(started, "\n", (warning, "bold yellow")) if warning else started
        if isinstance(event, AgentEnded):
            why = f": {_shortened(event.why)}" if event.why else ""
            return Text(f"agent {event.reason} after {format_duration(event.elapsed_s)}{why}", "yellow" if why else "")
        if isinstance(event, ProcessesSurvived):
            return Text(f"{len(event.processes)} processes of the agent could not be stopped", "bold red")
        if isinstance(event, RunFailed):
            return Text(f"failed: {_shortened(event.reason)}", "red")
        if isinstance(event, PrivateGraded):
            return Text.assemble("private score ", (str(event.result), "bold"), ("; checking the result", "dim"))
        return self._describe_submission(run, event)

    def _describe_submission(self, run: RunDir, event: Event) -> Text | None:
        if isinstance(event, SubmissionAccepted):
            after, path = format_duration(event.elapsed_s), event.model_path.removeprefix(f"{run.workspace}/")
            return Text(f"submission {event.submission_id} after {after}: {_shortened(path)}", "dim")
        if isinstance(event, Graded):
            numbers = self._numbers_of(run, event.weights_digest)
            gain = "" if event.improvement is None else f", {event.improvement:+.1f} points"
            return Text.assemble(f"submission {numbers} scores ", (f"{event.result}{gain}", "bold"))
        if isinstance(event, GradingFailed):
            numbers = self._numbers_of(run, event.weights_digest)
            return Text(f"submission {numbers} has no grade yet: {_shortened(event.reason)}", "yellow")
        if isinstance(event, SubmissionRefused):
            more = "submission refused" if event.count == 1 else f"{event.count} submissions refused, the last one"
            return Text(f"{more}: {_shortened(event.reason)}", "yellow")
        return None

    def _numbers_of(self, run: RunDir, digest: str) -> str:
        """Returns the numbers of the submissions of a checkpoint."""
        return ", ".join(self._numbers.get((run.id, digest), [])) or "?"


def _shortened(text: str) -> str:
    """Returns a text of the agent, shortened so that it fits into a line."""
    return printable(text, MAX_SHOWN)


STOPPING = (signal.SIGINT, signal.SIGTERM)
START_TIMEOUT_S = 120
TURN_TIMEOUT_S = 600
"""How long the server waits for those of other commands that start."""
END_TIMEOUT_S = 5
DATABASE_BYTES = 20_000_000


def run_flow(runs: Sequence[RunDir], settings: Settings, **parameters: Any) -> None:
    """Runs the flow `a2rl` for these runs and prints what happens in them.

    Args:
        parameters: Further parameters of the flow.

    Raises:
        A2rlError: The flow has failed, or the user's proxy is none that Prefect could use.
        InfrastructureError: Something else failed before all runs had ended.
        InterruptedByUserError: The user stopped it.
    """
    require_proxies(settings.environ)
    ids = [run.id for run in runs]
    server: AbstractContextManager[Callable[[], None]] = nullcontext(lambda: None)  # the user's own is there already
    if not settings.environ.get("PREFECT_API_URL"):
        server = embedded_server(settings)
    end_once()
    if not err.is_terminal:  # neither the spinner nor the table below appears in a file
        what = ids[0] if len(ids) == 1 else f"{len(ids)} runs"
        err.print(f"starting {what}; `a2rl watch` shows the progress", soft_wrap=True)
    try:
        with err.status("starting Prefect (the first time takes half a minute)") as status, server as wait_until_ready:
            from flows.pipeline import a2rl  # the import takes seconds, during which the server starts

            wait_until_ready()
            status.stop()
            watcher = Watcher(settings.runs, lambda run: run.id in ids)
            with Follower(runs, err), table_below(watcher.look, err):
                a2rl(run_ids=ids, **parameters)
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - Prefect raises many types
        _raise_unless_ended(runs, error)


def _raise_unless_ended(runs: Sequence[RunDir], error: BaseException) -> None:
    """Raises what ended a flow, unless it came after the end of all runs, and changes nothing.

    Prefect's own error may have come while it handled ours, or a Ctrl-C, which then says more. An error of another type
    is not necessarily Prefect's.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt | A2rlError):
        cause = cause.__context__
    left = [run for run in runs if is_unfinished(run)]
    resume = f"a2rl resume {' '.join(run.id for run in left or runs)}"
    if isinstance(cause, KeyboardInterrupt | InterruptedByUserError):
        raise InterruptedByUserError(f"stopped; nothing is lost. Continue with: {resume}") from error
    if cause is not None:
        raise cause
    for run in runs:
        log_failure(log_of(run), "the flow", error)
    failed = f"the flow failed: {type(error).__name__}: {first_line(error)}"
    if left:
        raise InfrastructureError(f"{failed}. Continue with: {resume}") from error
    say_aside(f"all runs have ended; after that, {failed} (logs/{ASIDE_LOG} of each run has more)", style="yellow")


def end_once() -> None:
    """Lets Ctrl-C or SIGTERM end this command once: a second one would end what saves the runs."""
    for number in STOPPING:
        signal.signal(number, _end)


def _end(*_: object) -> None:
    for number in STOPPING:
        signal.signal(number, _ask_to_wait)
    raise KeyboardInterrupt


def _ask_to_wait(*_: object) -> None:
    os.write(2, f"stopping the runs takes some seconds (at once: kill -9 {os.getpid()})\n".encode())


@contextmanager
def showing(show: Callable[[], None]) -> Iterator[None]:
    """Calls `show` when the runs have ended, even if some of them failed.

    It is not called if nothing was started or if the user stopped the runs.
    """
    try:
        yield
    except RunFailedError:
        show()
        raise
    show()


@contextmanager
def embedded_server(settings: Settings) -> Iterator[Callable[[], None]]:
    """Starts a Prefect server for this command only, on a free port. Its database is in .prefect/.

    One server starts at a time: of two that make or change the tables of the database, one would fail.

    Yields:
        A function that waits until the server answers and raises InfrastructureError if it does not start.

    Raises:
        InfrastructureError: The disk is full, or another command's server takes too long to start.
    """
    quiet = {
        "PREFECT_HOME": str(settings.root / ".prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    log = settings.root / ".prefect" / "server.log"
    log.parent.mkdir(exist_ok=True)
    if (free := shutil.disk_usage(log.parent).free) < DATABASE_BYTES:
        raise InfrastructureError(
            f"{log.parent} has {format_bytes(free)} left, and the database of Prefect in it needs "
            f"{format_bytes(DATABASE_BYTES)}: free some disk space"
        )
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener, ExitStack() as starting:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"

        def start() -> Child:
            descriptor = listener.fileno()
            return Child.of_module(
                "flows.server", descriptor, settings=settings, log=log, descriptors=[descriptor], variables=quiet
            )

        def wait_until_ready() -> None:
            if not server.child.is_healthy(url, START_TIMEOUT_S):
                problem = (last_lines(log, log_start) or [""])[-1]
                raise InfrastructureError(
                    f"the embedded Prefect server did not start{f' ({problem})' if problem else ''}; see {log}, or set "
                    "PREFECT_API_URL to your own"
                )
            starting.close()
            server.watch()

        lock = log.with_name(".start.lock")
        starting.enter_context(file_lock(lock, "another command starts Prefect", TURN_TIMEOUT_S))
        log_start = log.stat().st_size if log.exists() else 0
        server = RestartedChild(start)
        try:
            # Prefect reads its settings from the environment when it is imported, which happens later.
            os.environ.update(quiet | {"PREFECT_API_URL": url})
            yield wait_until_ready
        finally:
            server.close(END_TIMEOUT_S)
