"""Prints on the terminal what happens in runs while a flow works on them."""

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.text import Text

from a2rl.cli.progress import GradingProgress
from a2rl.cli.results import sandbox_warning
from a2rl.core.background import PeriodicThread
from a2rl.core.errors import A2rlError
from a2rl.core.printable import printable
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir
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
from a2rl.run.records import SetupRecord

POLL_INTERVAL_S = 0.3
MAX_SHOWN = 400
"""The maximum number of characters of an agent's text in one line on the terminal."""


class Follower:
    """Prints what happens in some runs while a flow works on them in this process."""

    def __init__(self, runs: Path, console: Console, only: set[str] | None = None) -> None:
        self._runs = runs
        self._console = console
        self._known = {run.id for run in RunDir.all(runs)} - (only or set())
        self._seen: dict[str, int] = {}
        self._digests: dict[tuple[str, str], list[int]] = {}
        for run in (RunDir(runs / run_id) for run_id in only or ()):
            entries = run.ledger.entries()
            self._seen[run.id] = len(entries)
            for entry in entries:
                self._remember(run, entry.event)
        self._progress = GradingProgress()
        self._thread = PeriodicThread("following the runs", self._look, lambda: POLL_INTERVAL_S)

    def __enter__(self) -> "Follower":
        self._thread.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.__exit__(kind, error, trace)
        self._look()

    def _look(self) -> None:
        for run in RunDir.all(self._runs):
            if run.id not in self._known:
                try:
                    self._look_at(run)
                except A2rlError:
                    continue  # the process that works on the run reports it

    def _look_at(self, run: RunDir) -> None:
        if run.id not in self._seen:
            spec = run.spec
            self._line(
                run,
                Text(f"budget {format_duration(spec.budget_s)}, {spec.mode}, {spec.protocol}, seed {spec.seed}", "dim"),
            )
            self._seen[run.id] = 0
        for entry in run.ledger.entries(after=self._seen[run.id]):
            self._seen[run.id] = entry.seq
            self._remember(run, entry.event)
            if text := self._describe(run, entry.event):
                self._line(run, text)
        names = {run.checkpoint(digest).name: f"submission {', '.join(map(str, numbers))}"
                 for (run_id, digest), numbers in self._digests.items() if run_id == run.id}  # fmt: skip
        for line in self._progress.lines(run, names):
            self._line(run, Text(line, "dim"))

    def _line(self, run: RunDir, text: Text) -> None:
        clock = time.strftime("%H:%M:%S")
        self._console.print(Text.assemble((f"{clock} ", "dim"), (f"{run.id}  ", "cyan"), text), soft_wrap=True)

    def _remember(self, run: RunDir, event: Event) -> None:
        """Notes the number of a submission; what comes later names only its checkpoint."""
        if isinstance(event, SubmissionAccepted):
            self._digests.setdefault((run.id, event.weights_digest), []).append(event.submission_id)

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
            return Text.assemble("private score ", (str(event.result), "bold"))
        return self._describe_submission(run, event)

    def _describe_submission(self, run: RunDir, event: Event) -> Text | None:
        if isinstance(event, SubmissionAccepted):
            after = format_duration(event.elapsed_s)
            return Text(f"submission {event.submission_id} after {after}: {_shortened(event.model_path)}", "dim")
        if isinstance(event, Graded):
            numbers = self._numbers(run, event.weights_digest)
            gain = "" if event.improvement is None else f", {event.improvement:+.1f} points"
            return Text.assemble(f"submission {numbers} scores ", (f"{event.result}{gain}", "bold"))
        if isinstance(event, GradingFailed):
            numbers = self._numbers(run, event.weights_digest)
            return Text(f"submission {numbers} has no grade yet: {_shortened(event.reason)}", "yellow")
        if isinstance(event, SubmissionRefused):
            more = "submission refused" if event.count == 1 else f"{event.count} submissions refused, the last one"
            return Text(f"{more}: {_shortened(event.reason)}", "yellow")
        return None

    def _numbers(self, run: RunDir, digest: str) -> str:
        """Returns the numbers of the submissions of a checkpoint."""
        return ", ".join(str(number) for number in self._digests.get((run.id, digest), [])) or "?"


def _shortened(text: str) -> str:
    """Returns a text of the agent, shortened so that it fits into a line."""
    return printable(text, MAX_SHOWN)
