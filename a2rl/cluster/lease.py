"""Keeps a claim alive while a run is worked on, and notices at once when it is lost."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from a2rl.cluster.claims import RENEW_S, Claim, ClaimLostError, Claims, Progress
from a2rl.core.background import PeriodicThread

MARGIN_S = 10.0
"""So long before the lease ends, a claim that could not be renewed counts as lost."""
RETRY_S = 2.0
TICK_S = 0.5


def awake_and_asleep() -> float:
    """Returns seconds since the machine was started, including those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Renews a claim in a thread until the context is left.

    Args:
        claims: Where the claim is.
        claim: The claim, which was taken just now.
        progress: Returns what to say about the run, or None.
        on_lost: Called once, in the thread, when the claim is lost.
        since: When taking the claim began, by the clock; now, if that is not known.
        now: The clock.
    """

    def __init__(
        self,
        claims: Claims,
        claim: Claim,
        progress: Callable[[], Progress | None],
        on_lost: Callable[[], None],
        since: float | None = None,
        now: Callable[[], float] = awake_and_asleep,
    ) -> None:
        self._claims, self._claim, self._progress, self._on_lost = claims, claim, progress, on_lost
        self._now, self._lease_s, self._renew_s = now, claims.lease_s, min(RENEW_S, claims.lease_s / 6)
        self._renewed_at = now() if since is None else since
        self._next_at = self._renewed_at + self._renew_s
        self._is_lost = threading.Event()
        self._thread = PeriodicThread("the claim", self.tick, lambda: TICK_S)
        self._watch = PeriodicThread("the lease", self.check, lambda: TICK_S)

    def __enter__(self) -> "Lease":
        self._thread.__enter__()
        self._watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.__exit__(None, None, None)
        self._thread.__exit__(None, None, None)

    @property
    def is_lost(self) -> bool:
        """Whether the run may not be worked on any more."""
        self.check()
        return self._is_lost.is_set()

    def check(self) -> None:
        """Notices that the claim was not renewed in time, also while a renewal hangs."""
        if self._now() - self._renewed_at > self._lease_s - min(MARGIN_S, self._lease_s / 4):
            self.lose()

    def tick(self) -> None:
        """Renews the claim if it is time to."""
        if self._is_lost.is_set() or self._now() < self._next_at:
            return
        began = self._now()
        try:
            self._claims.renew(self._claim, self._known_progress())
        except ClaimLostError:
            self.lose()
        except Exception:  # noqa: BLE001 - such as a restart of the database: `check` decides when it has taken too long
            self._next_at = began + min(RETRY_S, self._renew_s)
        else:
            self._renewed_at, self._next_at = began, began + self._renew_s

    def lose(self) -> None:
        """Gives the claim up; the first call tells the owner."""
        if not self._is_lost.is_set():
            self._is_lost.set()
            self._on_lost()

    def _known_progress(self) -> Progress | None:
        with suppress(Exception):  # what is only shown must not cost the claim
            return self._progress()
        return None
