"""Publishes signed heads, so that not even the holder of the signing key can replace a run later.

Each place gets the newest head of a run from time to time, and the last one at the end. What was published, and what
failed, is in `published.jsonl` of the run. Every attempt has a time limit.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from a2rl.anchor.params import AnchorParams
from a2rl.anchor.places import publish_by_command, publish_to_git, publish_to_timestamp_service
from a2rl.anchor.signature import Head
from a2rl.core.errors import A2rlError, InfrastructureError
from a2rl.core.event_log import EventLog
from a2rl.run.directory import RunDir

FILE = "published.jsonl"
Place = Callable[[str, Head], str]
"""Publishes the head of a run, and returns its receipt; raises if that failed."""


class Publisher:
    """Publishes heads at the places that the settings name."""

    def __init__(self, places: Mapping[str, Place], every_s: float) -> None:
        self._places, self._every_s = places, every_s
        self._published: dict[tuple[str, str], tuple[int, float]] = {}
        self._problems: dict[tuple[str, str], str] = {}
        """What the last try at each place failed of."""

    @classmethod
    def of(cls, params: AnchorParams, root: Path) -> "Publisher":
        """Makes the publisher of a checkout."""
        limit_s, places = params.publish_timeout_s, dict[str, Place]()
        if command := params.publish_command:
            places["command"] = lambda run_id, head: publish_by_command(command, root, run_id, head, limit_s)
        if url := params.publish_git:
            places["git"] = lambda run_id, head: publish_to_git(url, root, run_id, head, limit_s)
        if service := params.publish_timestamp:
            places["timestamp"] = lambda run_id, head: publish_to_timestamp_service(service, run_id, head, limit_s)
        return cls(places, params.publish_every_s)

    def publish(self, run: RunDir, head: Head, is_last: bool) -> None:
        """Publishes a head where it is due.

        Raises:
            InfrastructureError: A place failed; the others were tried, and calling this again repeats what failed.
        """
        problems = []
        for name, place in self._places.items():
            seq, at = self._published.get((run.id, name), (0, 0.0))
            if head.seq > seq and (is_last or time.monotonic() - at >= self._every_s):
                problem = self._try(run, name, place, head)
                if problem:
                    problems.append(f"{name}: {problem}")
                else:
                    self._published[run.id, name] = (head.seq, time.monotonic())
        if problems:
            raise InfrastructureError(f"a head could not be published: {'; '.join(problems)}")

    def _try(self, run: RunDir, name: str, place: Place, head: Head) -> str:
        log, receipt, problem = EventLog(run.root / FILE), "", ""
        try:
            receipt = place(run.id, head)
        except A2rlError as error:
            problem = str(error)
        else:
            problem = f"{FILE}, which keeps the receipts, is full" if log.is_full else ""
        if not problem or problem != self._problems.get((run.id, name)):  # a place that is down is asked very often
            log.write(to=name, seq=head.seq, hash=head.hash, receipt=receipt, problem=problem)
        self._problems[run.id, name] = problem
        return problem
