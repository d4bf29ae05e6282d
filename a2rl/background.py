"""Work beside the one that matters: in a thread of its own, again and again, and never in anybody's way."""

import threading
from collections.abc import Callable
from types import TracebackType

from a2rl.event_log import EventLog
from a2rl.run import RunDir

JOIN_S = 5.0


class Background:
    """Calls a function until it is left; what goes wrong is written down, not raised.

    A call that does not return is left behind with its thread: it can delay the end by no more than a few seconds.

    Args:
        name: for people.
        work: called again and again.
        pause_s: tells how long to rest before each call.
        log: where failures go, one line for each that differs from the last.
    """

    def __init__(self, name: str, work: Callable[[], object], pause_s: Callable[[], float], log: EventLog) -> None:
        self._name = name
        self._work = work
        self._pause_s = pause_s
        self._log = log
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)
        self.failure: Exception | None = None
        """Of the last call, if it failed."""

    def __enter__(self) -> "Background":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(JOIN_S)

    def _repeat(self) -> None:
        while not self._over.wait(self._pause_s()):
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the agent's time goes on
                if str(error) != str(self.failure):
                    note(self._log, self._name, error)
                self.failure = error
            else:
                self.failure = None


def note(log: EventLog, what: str, error: BaseException) -> None:
    """Writes down that something beside the run has failed, if that is possible."""
    try:
        log.write(what=what, failed=f"{type(error).__name__}: {error}"[:1000])
    except OSError:
        return  # a full disk is somebody else's to report


def pipeline_log(run: RunDir) -> EventLog:
    """What went wrong beside the work on a run: `logs/pipeline.jsonl`."""
    return EventLog(run.logs / "pipeline.jsonl", max_bytes=1 << 20)
