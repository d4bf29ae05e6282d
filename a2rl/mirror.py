"""Keeps MLflow up to date with runs, in a thread of its own: it can neither delay nor fail a run.

Only the newest state counts, so that there is no queue to fill: what has changed is noted, and mirrored whole when
MLflow answers. A run whose mirror is behind says so in `logs/mlflow-behind.txt`; `a2rl report RUN` mirrors it again.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from a2rl.errors import A2rlError
from a2rl.run import RunDir

PAUSE_S = (5.0, 15.0, 60.0)
"""After one failure, two, and more."""
LAST_WAIT_S = 6.0
"""For the last state, at the end, where MLflow does not answer."""
WORKING_WAIT_S = 60.0
"""Likewise, while it does."""
POLL_S = 0.05
MAX_PROBLEM = 300


class Mirror:
    """Mirrors runs with `sync`, which brings MLflow up to a run, may take any time and may fail.

    Args:
        alive_at: when MLflow gave its last sign of life, by the monotonic clock.
    """

    def __init__(
        self,
        sync: Callable[[RunDir], None],
        alive_at: Callable[[], float] = lambda: 0.0,
        pause_s: tuple[float, ...] = PAUSE_S,
    ) -> None:
        self._sync, self._alive_at, self._pause_s = sync, alive_at, pause_s
        self._changed: dict[str, RunDir] = {}
        self._current: RunDir | None = None
        self._seen: dict[str, int] = {}
        self._failures = 0
        self._is_closing = False
        self._state = threading.Condition()
        self._done = threading.Event()
        threading.Thread(target=self._work, name="mirror", daemon=True).start()

    def look(self, run: RunDir) -> None:
        """Has a run mirrored if its ledger has grown."""
        entries = run.ledger.entries(after=self._seen.get(run.id, 0))
        if entries:
            self._seen[run.id] = entries[-1].seq
            self.changed(run)

    def changed(self, run: RunDir) -> None:
        """Has a run mirrored, soon; returns at once."""
        with self._state:
            self._changed[run.id] = run
            self._state.notify_all()

    def close(self) -> None:
        """Mirrors what is left while MLflow answers; returns after a few seconds where it does not."""
        with self._state:
            self._is_closing = True
            self._state.notify_all()
        began = time.monotonic()
        while not self._done.wait(POLL_S):
            now = time.monotonic()
            if now - max(began, self._alive_at()) > LAST_WAIT_S or now - began > WORKING_WAIT_S:
                break
        with self._state:
            for run in {*self._changed.values(), *filter(None, [self._current])}:
                mark_behind(run, "it does not answer")

    def _work(self) -> None:
        while (run := self._next()) is not None:
            problem = self._try(run)
            mark_behind(run, problem)
            with self._state:
                self._current = None
                self._failures = self._failures + 1 if problem else 0
                if problem and not self._is_closing:
                    self._changed.setdefault(run.id, run)
                    pause_s = self._pause_s[min(self._failures, len(self._pause_s)) - 1]
                    self._state.wait_for(lambda: self._is_closing, pause_s)
        self._done.set()

    def _next(self) -> RunDir | None:
        """The next run that has changed; None if the mirror was closed and there is none."""
        with self._state:
            self._state.wait_for(lambda: self._changed or self._is_closing)
            self._current = self._changed.pop(next(iter(self._changed))) if self._changed else None
            return self._current

    def _try(self, run: RunDir) -> str:
        """What went wrong; nothing if nothing did."""
        try:
            self._sync(run)
        except A2rlError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
            return f"{type(error).__name__}: {error}"
        return ""


def mark_behind(run: RunDir, problem: str) -> None:
    """Notes why MLflow lacks something of a run; an empty text: it lacks nothing."""
    try:
        if problem:
            _mark(run).write_text(" ".join(problem.split())[:MAX_PROBLEM] + "\n", encoding="utf-8")
        else:
            _mark(run).unlink(missing_ok=True)
    except OSError:
        return  # a full disk, say, which whoever works on the run reports


def behind(run: RunDir) -> str:
    """What a user must be told of a run's mirror, in one line; nothing if it is whole."""
    try:
        problem = _mark(run).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return f"MLflow is behind ({problem}): `a2rl report {run.id}` mirrors the run again."


def _mark(run: RunDir) -> Path:
    return run.logs / "mlflow-behind.txt"
