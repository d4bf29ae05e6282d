"""Receives the submissions of a run, copies their files and accepts or refuses them.

Deadline, quotas and receipt are checked and recorded in one transaction of the ledger, before the first byte is copied:
a submission with a receipt counts, however long its copy takes and whatever crashes meanwhile. A restarted service
finds it there and copies it. After the agent's end is in the ledger, no more receipts are given.
"""

import errno
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import A2rlError, InfrastructureError, InvalidSubmissionError, UnclearFaultError
from a2rl.grading.adapters import merge_adapter
from a2rl.grading.submission_checks import CheckedCopy, Requirements, check_apart, copy_submission
from a2rl.grading.submission_queue import PendingSubmission, SubmissionQueue
from a2rl.grading.submission_states import (
    crash_mark,
    is_agent_at_work,
    mark_unneeded,
    open_receipts,
    pruned,
    quota_left,
    sweep,
)
from a2rl.grading.submitted_files import FrozenSources
from a2rl.grading.throttling import MAX_PATH, MAX_REASON, Refusals, bounded
from a2rl.linux.untrusted_folder import UntrustedFolder
from a2rl.models.checkpoint import largest_size, tensors_of
from a2rl.recording.code_history import snapshot_code
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted, SubmissionAccepted, SubmissionClaims, SubmissionReceived, SubmissionRefused
from a2rl.run.inputs import base_model_of, settings_of
from a2rl.run.ledger import Entry, events_of
from a2rl.run.records import SetupRecord

AGENTS_ERRORS = {
    errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.EINVAL, errno.ENXIO, errno.EXDEV, errno.ESTALE, errno.EFBIG, errno.EOVERFLOW, errno.ETXTBSY, errno.EBUSY,
}  # fmt: skip
"""Errors that an agent can cause with its folder. All other errors are failures of the machine."""
UNREADABLE = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors that may be raised while a hostile file is read."""
MAX_CRASHES = 2
"""A submission on which the service has crashed more often is refused, so that others get their turn."""
AGAIN = "the grading service was restarted while it copied this, and it cannot be copied again: "


class SubmitRequest(NamedTuple):
    """What a request to submit says."""

    model_path: str
    """The folder as the agent named it."""
    key: str = ""
    """The idempotency key, if it has one."""
    gpu: str = ""
    """The GPUs that the agent asks for, separated by commas; empty: any."""
    claims: SubmissionClaims = SubmissionClaims()
    """What the agent says of the submission."""


class BudgetSpentError(InvalidSubmissionError):
    """The deadline has passed or a quota is used up."""


class SubmissionDeferredError(A2rlError):
    """The submission would have to wait: too many are copied or graded, or too many were refused."""


class _RepeatedError(Exception):
    """The request repeats one that was received before."""

    def __init__(self, received: SubmissionReceived) -> None:
        super().__init__()
        self.received = received


class _AlreadyResolvedError(Exception):
    """Another service has accepted or refused this submission meanwhile."""


class Submissions:
    """Receives, copies and accepts the submissions of a run. Thread-safe."""

    def __init__(self, run: RunDir, now: Callable[[], float] = time.monotonic) -> None:
        self._run, self._now = run, now
        self._settings = settings_of(run)
        self._lock = threading.Lock()
        """Held while something is written to the ledger that the queue or a checkpoint's folder must agree with."""
        self._sources = FrozenSources(run.checkpoints, self._largest)
        self.queue = SubmissionQueue(now)
        self.refusals = Refusals(run.ledger, now)

    def _largest(self) -> int:
        """Returns the most bytes that the weights of a submission may have."""
        return largest_size(tensors_of(base_model_of(self._run)))

    def receive(self, request: SubmitRequest, *, queues: bool = False) -> PendingSubmission:
        """Gives a submission its receipt and freezes its files.

        Args:
            request: The request. If one with its key was received before, this is the same submission.
            queues: Whether it is received although it has to wait for its turn.

        Raises:
            SubmissionDeferredError: It has to wait, and does not queue.
            InvalidSubmissionError: It is refused; this is recorded.
        """
        try:
            with self._lock:
                _check_key(request, self._run.ledger.entries() if request.key else [])
                if not (queues or self.queue.has_room):
                    raise SubmissionDeferredError("others are being graded")
                self._check_path(request.model_path)
                pending = self.queue.add(self._run.ledger.append_next(lambda entries: self._receipt(request, entries)))
        except InvalidSubmissionError as refusal:
            self.refuse_unreceived(request.model_path, str(refusal))
            raise
        except _RepeatedError as repeated:
            return self.queue.add(repeated.received)
        self._sources.freeze(pending.received.receipt, self._run.workspace, request.model_path)  # may take a while
        return pending

    def refuse_unreceived(self, model_path: str, reason: str) -> None:
        """Records a refusal without a receipt."""
        self.refusals.note(self._run.clock.elapsed_s(), model_path, reason)

    def claim_unfinished(self) -> list[PendingSubmission]:
        """Adds to the queue the submissions that an earlier service, or a failed copy, left unfinished."""
        with self._lock:
            unfinished, pending = open_receipts(self._run.ledger.entries()), self.queue.receipts()
            self._sources.keep_only({each.receipt for each in unfinished} | pending)
            return [self.queue.add(each) for each in unfinished if each.receipt not in pending]

    def accept(self, pending: PendingSubmission, *, again: bool = False) -> SubmissionAccepted:
        """Copies and checks a submission when it is its turn; one that was accepted before is not copied again.

        Args:
            again: Whether an earlier service has tried before.

        Raises:
            InvalidSubmissionError: It cannot be graded; this is recorded as a refusal.
            InfrastructureError: The grader's machine failed. While the agent is running and can submit again, this is
                recorded as a refusal, too; after its end, the receipt stays open for another try, unless the submission
                may be the reason: a run must end.
        """
        received = pending.received
        if (accepted := self._accepted_before(received)) is None:
            self.queue.wait_for_turn(pending)
            began = self._now()
            try:
                accepted = self._copy_and_record(pending)
            except InvalidSubmissionError as refusal:
                if is_agent_at_work(self._run.ledger.entries()):
                    self.queue.note_mistake(self._now() - began)
                reason = f"{AGAIN if again else ''}{refusal}"
                self._refuse(received, reason)
                raise InvalidSubmissionError(bounded(reason, MAX_REASON)) from refusal
            except InfrastructureError as failure:
                if isinstance(failure, UnclearFaultError) or is_agent_at_work(self._run.ledger.entries()):
                    self._refuse(received, str(failure))
                raise
            except _AlreadyResolvedError as error:
                raise InfrastructureError("another grading service has accepted or refused this submission") from error
            self._sources.release(received.receipt)
        self.queue.accept(pending)
        return accepted

    def prune(self) -> None:
        """Removes checkpoints that the run no longer needs."""
        with suppress(A2rlError, OSError):  # tried again after the next grade, and by the stage `grade`
            with self._lock:
                mark_unneeded(self._run)
            sweep(self._run)

    def _accepted_before(self, received: SubmissionReceived) -> SubmissionAccepted | None:
        """Returns how a submission was accepted; None if it is open.

        Raises:
            InvalidSubmissionError: It was refused.
        """
        for event in (entry.event for entry in self._run.ledger.entries()):
            if isinstance(event, SubmissionAccepted) and event.receipt == received.receipt:
                return event
            if isinstance(event, SubmissionRefused) and event.receipt == received.receipt:
                raise InvalidSubmissionError(event.reason)
        return None

    def _check_path(self, model_path: str) -> None:
        """Refuses the most frequent mistakes of agents before they cost anything."""
        if len(model_path) > MAX_PATH:
            raise InvalidSubmissionError(f'"model_path" has more than {MAX_PATH} characters; give a shorter path')
        root = self._run.workspace
        path = model_path.removeprefix(f"{root}/")
        with suppress(OSError, ValueError), UntrustedFolder.at(root) as workspace:
            try:
                workspace.folder(path).close()
            except FileNotFoundError as error:
                raise InvalidSubmissionError(
                    f"there is no folder {model_path}; save the checkpoint first, then submit its folder"
                ) from error

    def _receipt(self, request: SubmitRequest, entries: list[Entry]) -> SubmissionReceived:
        """Checks deadline and quotas and returns the next receipt."""
        _check_key(request, entries)  # again: another service may have received it meanwhile
        clock = self._run.clock
        if not events_of(entries, AgentStarted):
            raise BudgetSpentError("the run has not started")
        if not is_agent_at_work(entries) or clock.read_state().running_since is None or clock.remaining_s() <= 0:
            raise BudgetSpentError("the budget has ended; submissions are no longer accepted")
        spec, left = self._run.spec, quota_left(self._run, entries)
        if left.spent == "submissions":
            raise BudgetSpentError(f"the quota of {spec.submissions_quota} submissions is used up")
        if left.spent:
            raise BudgetSpentError(f"the quota of {spec.grading_quota_s:.0f} s of grading is used up")
        given = len(events_of(entries, SubmissionReceived))
        return SubmissionReceived(receipt=given + 1, elapsed_s=clock.elapsed_s(), **request._asdict())

    def _copy_and_record(self, pending: PendingSubmission) -> SubmissionAccepted:
        """Copies a submission and records that it is accepted."""
        received = pending.received
        incoming = self._run.checkpoints / f".incoming-{uuid.uuid4().hex}"
        try:
            with self._crash_mark(received):
                copied = self._copy(pending, incoming)
            revision = self._snapshot(received)
            with self._lock:
                kept = self._run.checkpoint(copied.digest)
                if not kept.exists() and copied.digest not in pruned(self._run.ledger.entries()):
                    incoming.rename(kept)
                return self._run.ledger.append_next(
                    lambda entries: _accepted(received, copied, revision, _still_open(received, entries))
                )
        except (A2rlError, _AlreadyResolvedError):
            raise
        except Exception as error:  # the submission is hostile input: any error must end in a refusal or a retry
            raise InfrastructureError(f"the grader could not copy the submission: {error!r}; submit again") from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    @contextmanager
    def _crash_mark(self, received: SubmissionReceived) -> Iterator[None]:
        """Counts the attempts to copy a submission in a file, which remains if the process crashes meanwhile."""
        marks = crash_mark(self._run, received.receipt)
        try:
            if marks.exists() and marks.stat().st_size > MAX_CRASHES:
                raise InvalidSubmissionError(
                    "the grading service crashed each time it read this; save the checkpoint again"
                )
            with marks.open("ab") as file:
                file.write(b".")
            yield
        finally:
            marks.unlink(missing_ok=True)

    def _copy(self, pending: PendingSubmission, target: Path) -> CheckedCopy:
        received, base_model = pending.received, base_model_of(self._run)
        try:
            source = self._sources.find(received.receipt, self._run.workspace, received.model_path)
            required = Requirements(
                base_model,
                self._run.need("setup", SetupRecord).complete_config,
                partial(merge_adapter, self._settings) if self._run.spec.merge_adapters else None,
                partial(check_apart, self._settings),
            )
            return copy_submission(source, target, required, partial(self.queue.copying, pending))
        except OSError as error:
            if not self._is_agents_error(error, base_model):  # for example, the base model's folder was removed
                raise
            raise InvalidSubmissionError(
                f"the folder cannot be read ({error.strerror}); save the checkpoint again and submit its folder"
            ) from error
        except UNREADABLE as error:
            raise InvalidSubmissionError(
                f"the checkpoint cannot be read ({type(error).__name__}); save it again with save_pretrained"
            ) from error

    def _is_agents_error(self, error: OSError, base_model: Path) -> bool:
        """Says whether the agent's folder caused the error; names in that folder are relative to an open folder."""
        where = str(error.filename or base_model)
        ours = where.startswith((str(base_model), str(self._run.checkpoints)))
        return error.errno in AGENTS_ERRORS and not ours

    def _snapshot(self, received: SubmissionReceived) -> str | None:
        """Commits the agent's code; a submission is never lost because that failed."""
        message = f"submission of {bounded(received.model_path, 200)}"
        try:
            return snapshot_code(self._run.workspace / "code", self._run.code, message)
        except (A2rlError, OSError, ValueError):
            return None

    def _refuse(self, received: SubmissionReceived, reason: str) -> None:
        self._sources.release(received.receipt)

        def choose(entries: list[Entry]) -> SubmissionRefused:
            _still_open(received, entries)
            return SubmissionRefused(
                elapsed_s=self._run.clock.elapsed_s(),
                model_path=bounded(received.model_path, MAX_PATH),
                reason=bounded(reason, MAX_REASON),
                receipt=received.receipt,
            )

        with suppress(_AlreadyResolvedError):
            self._run.ledger.append_next(choose)


def _check_key(request: SubmitRequest, entries: list[Entry]) -> None:
    """Checks the key of a request.

    Raises:
        _RepeatedError: A submission was received with it before.
        InvalidSubmissionError: The key belongs to a different submission.
    """
    received = events_of(entries, SubmissionReceived) if request.key else []
    known = next((event for event in received if event.key == request.key), None)
    if known is None:
        return
    if (known.model_path, known.gpu) != (request.model_path, request.gpu):
        raise InvalidSubmissionError(
            f"this Idempotency-Key belongs to another submission, that of {bounded(known.model_path, 200)}; use a new "
            "key for each submission"
        )
    raise _RepeatedError(known)


def _still_open(received: SubmissionReceived, entries: list[Entry]) -> list[Entry]:
    """Returns the entries if the receipt is still open in them."""
    if received.receipt not in {each.receipt for each in open_receipts(entries)}:
        raise _AlreadyResolvedError
    return entries


def _accepted(
    received: SubmissionReceived, copied: CheckedCopy, revision: str | None, entries: list[Entry]
) -> SubmissionAccepted:
    return SubmissionAccepted(
        submission_id=1 + len(events_of(entries, SubmissionAccepted)),
        elapsed_s=received.elapsed_s,
        model_path=received.model_path,
        weights_digest=copied.digest,
        code_revision=revision,
        receipt=received.receipt,
        adapter=copied.adapter,
    )
