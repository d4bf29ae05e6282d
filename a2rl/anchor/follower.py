"""Signs and publishes the heads of runs in the background, so that no network can delay a run.

What is missing is noted in `logs/anchor-behind.txt` and `logs/publishing-behind.txt`; `a2rl report RUN` tries again.
Heads are published to an RFC 3161 time-stamp service, so that not even the holder of the key can replace a run later.
The service gets the newest head of a run from time to time, and the last one at the end. Its answers, and what failed,
are in `published.jsonl` of the run. Every attempt has a time limit.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx

from a2rl.anchor.params import AnchorParams
from a2rl.anchor.signatures import LATE_S, Head
from a2rl.anchor.signing import Signer, head_of, sign_heads
from a2rl.core.errors import A2rlError, InfrastructureError
from a2rl.core.event_log import EventLog
from a2rl.core.retries import RetryableError, read_body
from a2rl.run.directory import RunDir

FILE = "published.jsonl"
MAX_TOKEN_BYTES = 1 << 20
EVERY_S = 60.0
"""The shortest time between two published heads of a run that goes on; the last one is published at once."""
TIMEOUT_S = 20.0
"""How long one attempt to publish may take."""


class Publisher:
    """Publishes the heads of runs to a time-stamp service."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._published: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        """What the last attempt for each run failed of."""

    def update(self, run: RunDir) -> None:
        """Publishes the head of what is safe of a run's ledger; raises the error of `publish`."""
        if (head := head_of(run)) is not None:
            self.publish(run, head)

    def publish(self, run: RunDir, head: Head) -> None:
        """Publishes a head, unless it was published before.

        Raises:
            InfrastructureError: That failed; calling this again repeats it.
        """
        if head.seq <= self._published.get(run.id, 0):
            return
        if problem := self._try(run, head):
            raise InfrastructureError(f"a head could not be published: {problem}")
        self._published[run.id] = head.seq

    def _try(self, run: RunDir, head: Head) -> str:
        log, receipt, problem = EventLog(run.root / FILE), "", ""
        try:
            receipt = time_stamp(self._url, run.id, head)
        except A2rlError as error:
            problem = str(error)
        else:
            problem = f"{FILE}, which keeps the receipts, is full" if log.is_full else ""
        if not problem or problem != self._problems.get(run.id):  # a service that is down is asked very often
            log.write(to="timestamp", seq=head.seq, hash=head.hash, receipt=receipt, problem=problem)
        self._problems[run.id] = problem
        return problem


def head_line(run_id: str, head: Head) -> str:
    """Returns a head as it is published: one line of JSON."""
    return json.dumps({"run": run_id, "seq": head.seq, "hash": head.hash}) + "\n"


def time_stamp(url: str, run_id: str, head: Head) -> str:
    """Has a time-stamp service sign the head with its time, and returns its answer in base64.

    Raises:
        InfrastructureError: It did not answer in time, or not with a time stamp of this head.
    """
    from rfc3161_client import HashAlgorithm, PKIStatus, TimestampRequestBuilder, decode_timestamp_response

    line = head_line(run_id, head).encode()
    request = TimestampRequestBuilder().data(line).hash_algorithm(HashAlgorithm.SHA256).build()
    token = _post(url, request.as_bytes())
    try:
        answer = decode_timestamp_response(token)
        granted = answer.status in {PKIStatus.GRANTED, PKIStatus.GRANTED_WITH_MODS}
        same = granted and answer.tst_info.message_imprint.message == hashlib.sha256(line).digest()
    except ValueError as error:
        raise InfrastructureError(f"{url} did not answer with a time stamp: {error}") from error
    if not same or answer.tst_info.nonce != request.nonce:
        raise InfrastructureError(f"{url} did not sign this head")
    return base64.b64encode(token).decode()


def _post(url: str, content: bytes) -> bytes:
    headers = {"Content-Type": "application/timestamp-query"}
    try:
        with httpx.stream("POST", url, content=content, headers=headers, timeout=TIMEOUT_S) as response:
            if response.status_code != 200:
                raise InfrastructureError(f"{url} answered with status {response.status_code}")
            return read_body(response.iter_bytes(), MAX_TOKEN_BYTES, TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL, RetryableError) as error:
        raise InfrastructureError(f"{url} does not answer: {error}") from error


MAX_PROBLEM_CHARS = 300


class BehindNote(NamedTuple):
    """A file in a run's `logs/` that is there while something outside of the run lacks a part of it."""

    file: str
    says: str
    """A line for the user, with `problem` and `run` to be filled in."""

    def mark(self, run: RunDir, problem: str) -> None:
        """Notes what is wrong; an empty problem removes the note."""
        note = run.logs / self.file
        try:
            if problem:
                note.write_text(" ".join(problem.split())[:MAX_PROBLEM_CHARS] + "\n", encoding="utf-8")
            else:
                note.unlink(missing_ok=True)
        except OSError:
            return  # for example a full disk, which the stages report

    def read(self, run: RunDir) -> str:
        """Returns the line for the user; empty if there is no note."""
        try:
            problem = (run.logs / self.file).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""
        return self.says.format(problem=problem, run=run.id)


SIGNING_NOTE = BehindNote(
    "anchor-behind.txt",
    "The ledger is not signed to its end ({problem}): `a2rl report {run}` tries again, which counts for "
    f"{LATE_S / 60:.0f} minutes after an entry.",
)
PUBLISHING_NOTE = BehindNote(
    "publishing-behind.txt", "The head of the ledger is not published ({problem}): `a2rl report {run}` tries again."
)


class Anchor(NamedTuple):
    """A part of the anchor of runs. Each part is followed by itself: signing must not wait for a service."""

    update: Callable[[RunDir], object]
    """Brings a run up to date. It raises an A2rlError if that failed; calling it again repeats it."""
    note: BehindNote
    every_s: float = 0.0
    """The shortest time between two updates of a run that goes on."""

    def catch_up(self, run: RunDir) -> str:
        """Brings a run up to date, and notes whether that worked; it does not raise.

        Returns:
            A line for the user; empty if it worked.
        """
        problem = ""
        try:
            self.update(run)
        except (A2rlError, OSError) as error:
            problem = str(error)
        self.note.mark(run, problem)
        return self.note.read(run)


def signing_of(params: AnchorParams, root: Path) -> Anchor | None:
    """Returns what signs the runs of a checkout; None if they are not signed.

    Raises:
        UsageError: The key cannot be used.
    """
    return Anchor(partial(sign_heads, signer=Signer(root / params.key)), SIGNING_NOTE) if params.key else None


def anchors_of(params: AnchorParams, root: Path) -> list[Anchor]:
    """Returns the parts of the anchor that a checkout uses.

    Raises:
        UsageError: The key cannot be used.
    """
    found = [signing] if (signing := signing_of(params, root)) else []
    if params.publish_timestamp:
        found.append(Anchor(Publisher(params.publish_timestamp).update, PUBLISHING_NOTE, EVERY_S))
    return found
