"""Keeps MLflow up to date with runs. This happens in a separate thread, so that MLflow cannot delay a run or make it
fail.

Only the newest state of a run is mirrored, so there is no queue that could grow. If MLflow lacks something of a run,
`logs/mlflow-behind.txt` says so. The next flow in this checkout mirrors the run again, and so does `a2rl report RUN`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from a2rl.anchor.follower import BehindNote
from a2rl.core.errors import A2rlError
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.names import stored_entries
from a2rl.run.owner import is_made_here

LOOK_EVERY_S = 1.0
PAUSE_S = (5.0, 15.0, 60.0)
"""The pauses after one failure, after two, and after more, in seconds."""
SILENT_TIMEOUT_S = 6.0
"""At the end, how long to wait for the last state if MLflow does not answer."""
CLOSE_TIMEOUT_S = 60.0
"""At the end, how long to wait while MLflow does answer."""
POLL_INTERVAL_S = 0.05
MLFLOW_NOTE = BehindNote(
    "mlflow-behind.txt", "MLflow is behind ({problem}): `a2rl report {run}` mirrors the run again."
)


class Mirror:
    """Mirrors runs in a thread.

    Args:
        sync: Brings MLflow up to date with a run; it may take any time and may fail.
        alive_at: Returns when MLflow last answered, by the monotonic clock.
        pause_s: The pauses after one failure, after two, and after more, in seconds.
        mark: Notes for a run what its mirror lacks; an empty text removes the note.
        every_s: The shortest time from one sync of a followed run to the next.
    """

    def __init__(
        self,
        sync: Callable[[RunDir], object],
        alive_at: Callable[[], float] = lambda: 0.0,
        pause_s: tuple[float, ...] = PAUSE_S,
        mark: Callable[[RunDir, str], None] = MLFLOW_NOTE.mark,
        every_s: float = 0.0,
    ) -> None:
        self._sync, self._alive_at, self._pause_s, self._mark = sync, alive_at, pause_s, mark
        self._every_s = every_s
        self._due_at: dict[str, float] = {}
        self._followed: dict[str, RunDir] = {}
        self._changed: dict[str, RunDir] = {}
        self._left_behind: list[RunDir] = []
        self._current: RunDir | None = None
        self._seen: dict[str, int] = {}
        self._failures = 0
        self._is_closing = False
        self._state = threading.Condition()
        self._done = threading.Event()
        threading.Thread(target=self._work, name="mirror", daemon=True).start()

    def follow(self, run: RunDir) -> None:
        """Mirrors a run soon, and whenever more of its ledger is safe; returns at once."""
        with self._state:
            self._followed[run.id] = run
            self._state.notify_all()

    def leave(self, run: RunDir) -> None:
        """Mirrors the last state of a run soon, and follows it no more; returns at once.

        The run has the note until that is done: this process may end first.
        """
        with self._state:
            self._followed.pop(run.id, None)
            self._changed[run.id] = run
            self._mark(run, "the last state is still to come")
            self._state.notify_all()

    def catch_up(self, runs: Iterable[RunDir]) -> None:
        """Mirrors runs that an earlier process left behind, whenever there is nothing else to mirror."""
        with self._state:
            self._left_behind.extend(runs)
            self._state.notify_all()

    def close(self) -> None:
        """Mirrors the remaining changes; gives up after a few seconds if MLflow does not answer."""
        with self._state:
            self._is_closing = True
            self._state.notify_all()
        began = time.monotonic()
        while not self._done.wait(POLL_INTERVAL_S):
            now = time.monotonic()
            if now - max(began, self._alive_at()) > SILENT_TIMEOUT_S or now - began > CLOSE_TIMEOUT_S:
                break
        with self._state:
            for run in {*self._changed.values(), *filter(None, [self._current])}:
                self._mark(run, "it does not answer")

    def _work(self) -> None:
        while (run := self._next()) is not None:
            problem = self._try(run)
            with self._state:
                if problem or run.id not in self._changed:  # it may have been left meanwhile
                    self._mark(run, problem)
                self._current = None
                self._failures = self._failures + 1 if problem else 0
                if not problem:
                    self._due_at[run.id] = time.monotonic() + self._every_s
                elif not self._is_closing:
                    self._changed.setdefault(run.id, run)
                    pause_s = self._pause_s[min(self._failures, len(self._pause_s)) - 1]
                    self._state.wait_for(lambda: self._is_closing, pause_s)
        self._done.set()

    def _next(self) -> RunDir | None:
        """Waits for a changed run; None if the mirror was closed and no run has changed."""
        while True:
            self._look()
            with self._state:
                if (due := next(filter(self._is_due, self._changed), None)) is not None:
                    self._current = self._changed.pop(due)
                elif self._left_behind and not self._is_closing:
                    self._current = self._left_behind.pop(0)
                elif not self._is_closing:
                    self._state.wait(LOOK_EVERY_S)
                    continue
                return self._current

    def _look(self) -> None:
        """Finds the followed runs of whose ledger more is safe than before."""
        for run in list(self._followed.values()):
            with suppress(Exception):  # what is wrong with a run is noted when it is mirrored, at the latest at its end
                if new := stored_entries(run, self._seen.get(run.id, 0)):
                    self._seen[run.id] = new[-1].seq
                    with self._state:
                        self._changed[run.id] = run
                        if not self._is_due(run.id):
                            self._mark(run, f"that is done every {self._every_s:.0f} s")

    def _is_due(self, run_id: str) -> bool:
        """Whether a changed run may be mirrored now: the last state of one that was left always may."""
        is_followed = run_id in self._followed and not self._is_closing
        return not is_followed or time.monotonic() >= self._due_at.get(run_id, 0.0)

    def _try(self, run: RunDir) -> str:
        """Mirrors a run; returns what went wrong, empty if nothing did."""
        try:
            self._sync(run)
        except A2rlError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - MLflow raises many types, and none of them may end this thread
            return f"{type(error).__name__}: {error}"
        return ""


def left_behind(settings: Settings) -> Iterator[RunDir]:
    """Yields the runs of which MLflow lacks something; those that were made elsewhere are left alone."""
    for mark in sorted(settings.runs.glob(f"*/logs/{MLFLOW_NOTE.file}")):
        if is_made_here(run := RunDir(mark.parents[1]), settings):
            yield run
