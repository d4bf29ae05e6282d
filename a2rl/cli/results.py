"""Runs as the commands show them: the JSON object of a run, and lines while it is going on."""

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.text import Text

from a2rl.budget import format_duration
from a2rl.errors import A2rlError
from a2rl.events import (
    AgentEnded,
    AgentStarted,
    BaselineKnown,
    Event,
    Graded,
    PrivateGraded,
    ProcessesSurvived,
    RunFailed,
    SubmissionAccepted,
    SubmissionRefused,
)
from a2rl.isolation.strength import Strength
from a2rl.printable import printable
from a2rl.ranking import selection_note
from a2rl.records import VERDICTS, BaselineRecord, ExecuteRecord, GradeRecord, SetupRecord
from a2rl.run import RunDir

POLL_S = 0.3
MAX_SHOWN = 400
"""Characters of what an agent named or said, in a line on the terminal."""


def run_object(run: RunDir) -> dict[str, Any]:
    """What `--json` says of a run; a figure that is not there yet is null."""
    spec, graded, executed = run.spec, run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
    base, ready = run.read("baseline", BaselineRecord), run.read("setup", SetupRecord)
    private = graded.final if graded and spec.protocol == "strict" else None
    return {
        "run_id": spec.run_id,
        "task": spec.task,
        "variant": spec.variant,
        "agent": spec.agent,
        "mode": spec.mode,
        "protocol": spec.protocol,
        "seed": spec.seed,
        "baseline": graded.baseline.score if graded else base.total.score if base else None,
        "best": graded.public.score if graded and graded.public else None,
        "private": private.score if private else None,
        "improvement": graded.improvement if graded else None,
        "gain": graded.gain if graded else None,
        "ci": list(graded.improvement_ci) if graded and graded.improvement_ci else None,
        "submissions": executed.submissions if executed else len(run.ledger.events(SubmissionAccepted)),
        "verdict": graded.verdict if graded else None,
        "selection": selection_note(run) if graded and graded.final else "",
        "reason": graded.reason if graded else "",
        "sandbox": ready.sandbox.kind if ready else None,
        "layers": list(ready.sandbox.layers) if ready else None,
        "report": str(run.report) if run.report.exists() else None,
    }


def state_of(run: RunDir) -> str:
    """Where a run stands, in a word or three."""
    graded = run.read("grade", GradeRecord)
    if graded is not None and graded.failed_stage is not None:
        return f"failed in {graded.failed_stage}"
    for stage in ("report", "grade", "execute", "baseline", "setup"):
        if run.record_path(stage).exists():
            return "done" if stage == "report" else f"after {stage}"
    return "new"


def sentence(run: RunDir) -> str:
    """The result in plain words."""
    graded = run.read("grade", GradeRecord)
    if graded is None:
        return "The run is not finished."
    if graded.final is None or graded.improvement is None or graded.improvement_ci is None:
        why = f" ({graded.reason})" if graded.reason else ""
        scores = "" if graded.baseline.score is None else f" The base model scores {graded.baseline}."
        return f"No result: {VERDICTS[graded.verdict]}{why}, which counts as a gain of zero.{scores}"
    low, high = graded.improvement_ci
    return (
        f"From {graded.baseline} to {graded.final}: {graded.improvement:+.1f} points, "
        f"95% interval [{low:+.1f}, {high:+.1f}]: {VERDICTS[graded.verdict]}."
        + (f" This is the {note}." if (note := selection_note(run)) else "")
    )


def sandbox_of(run: RunDir) -> Strength | None:
    """What confined the agent; None if that is not decided yet."""
    ready = run.read("setup", SetupRecord)
    return ready.sandbox if ready else None


def sandbox_warning(sandbox: Strength | None) -> str:
    """What a user must be told of a run's sandbox; nothing if it is whole, or not known yet."""
    if sandbox is None or not (sandbox.lacks or not sandbox.confines):
        return ""
    if not sandbox.confines:
        return "No sandbox: only good manners keep the agent in its workspace; the report says so too."
    return f"A weaker sandbox than it should be, without {'; '.join(sandbox.lacks)}; the report says so too."


def shown(text: str) -> str:
    """What an agent named or said, as part of a line."""
    return printable(text, MAX_SHOWN)


class Follower:
    """Prints what happens in some runs while a flow works on them in this process."""

    def __init__(self, runs: Path, console: Console, only: set[str] | None = None) -> None:
        self._runs = runs
        self._console = console
        self._known = {run.id for run in RunDir.all(runs)} - (only or set())
        self._seen: dict[str, int] = {run_id: len(RunDir(runs / run_id).ledger.entries()) for run_id in only or ()}
        self._stages: dict[str, set[str]] = {}
        self._digests: dict[tuple[str, str], list[int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.wait(POLL_S):
            self._look()
        self._look()

    def _look(self) -> None:
        for run in RunDir.all(self._runs):
            if run.id not in self._known:
                try:
                    self._look_at(run)
                except A2rlError:
                    continue  # whoever works on the run reports it

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
            if text := self._describe(run, entry.event):
                self._line(run, text)

    def _line(self, run: RunDir, text: Text) -> None:
        clock = time.strftime("%H:%M:%S")
        self._console.print(Text.assemble((f"{clock} ", "dim"), (f"{run.id}  ", "cyan"), text), soft_wrap=True)

    def _describe(self, run: RunDir, event: Event) -> Text | None:  # noqa: PLR0911 - one line for each kind of event
        if isinstance(event, BaselineKnown):
            return Text(f"baseline {event.public}")
        if isinstance(event, AgentStarted):
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            sandbox = run.need("setup", SetupRecord).sandbox
            started = Text(f"agent {run.spec.agent} started{again}, sandbox {sandbox}")
            warning = sandbox_warning(sandbox)
            return Text.assemble(started, "\n", (warning, "bold yellow")) if warning else started
        if isinstance(event, SubmissionAccepted):
            self._digests.setdefault((run.id, event.weights_digest), []).append(event.submission_id)
            after = format_duration(event.elapsed_s)
            return Text(f"submission {event.submission_id} after {after}: {shown(event.model_path)}", "dim")
        if isinstance(event, Graded):
            numbers = ", ".join(str(number) for number in self._digests.get((run.id, event.weights_digest), []))
            gain = "" if event.improvement is None else f", {event.improvement:+.1f} points"
            return Text.assemble(f"submission {numbers or '?'} scores ", (f"{event.result}{gain}", "bold"))
        if isinstance(event, SubmissionRefused):
            more = "submission refused" if event.count == 1 else f"{event.count} submissions refused, the last one"
            return Text(f"{more}: {shown(event.reason)}", "yellow")
        if isinstance(event, AgentEnded):
            why = f": {shown(event.why)}" if event.why else ""
            return Text(f"agent {event.reason} after {format_duration(event.elapsed_s)}{why}", "yellow" if why else "")
        if isinstance(event, ProcessesSurvived):
            return Text(f"{len(event.processes)} processes of the agent could not be ended", "bold red")
        if isinstance(event, RunFailed):
            return Text(f"failed: {shown(event.reason)}", "red")
        if isinstance(event, PrivateGraded):
            return Text.assemble("private score ", (str(event.result), "bold"))
        return None
