"""Receives submissions: one that arrives in time gets a receipt, is copied, and ends as refused or accepted.

Deadline, quotas and receipt are checked and recorded in one transaction of the ledger, before the first byte is copied:
a submission with a receipt counts, however long its copy takes and whatever crashes meanwhile. A restarted service
repeats copies that were not finished. After the agent's end is in the ledger, no more receipts are given.
"""

import contextlib
import errno
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from a2rl.core.errors import A2rlError, InfrastructureError, InvalidSubmissionError
from a2rl.core.settings import Settings
from a2rl.grading.adapters import AdapterMerger
from a2rl.grading.frozen_sources import FrozenSources, Source
from a2rl.grading.submission_checks import KeptCopy, check_apart, copy_submission
from a2rl.grading.submission_states import is_agent_at_work, mark_unneeded, open_receipts, pruned, quota_left, sweep
from a2rl.grading.throttling import MAX_PATH, MAX_REASON, Refusals, SubmissionQueue, bounded
from a2rl.linux.untrusted_folder import UntrustedFolder
from a2rl.recording.code_history import snapshot_code
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted, SubmissionAccepted, SubmissionClaims, SubmissionReceived, SubmissionRefused
from a2rl.run.inputs import base_model_of
from a2rl.run.ledger import Entry
from a2rl.run.records import SetupRecord
from a2rl.run.rules import MAX_WAITING

MISTAKES, LONGEST_PAUSE_S = 20, 60.0
"""After this many refused copies, each further one delays all submissions. The delay in seconds is a tenth of the
number of refused copies, up to the longest pause. The reason is that each refused copy costs the grader some work and
two events."""
REFUSED_S = 600.0
"""The seconds that refused submissions may take in all. After that, each one delays all submissions by as long as it
took, up to the longest pause, so that they take at most half of the grader's time."""
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


NO_CLAIMS = SubmissionClaims()


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
        self._run = run
        self._settings = Settings(run.checkout, Settings.load(run.checkout).environ)
        self._lock = threading.Lock()
        self._copy_lock = threading.Lock()
        """One copy at a time: two would each count on the same free disk space."""
        self._busy: set[int] = set()
        """Receipts that this process is working on, or that wait for their turn."""
        self.copying: set[int] = set()
        """The receipts of the submissions that are copied or checked now."""
        self._sources = FrozenSources(run.checkpoints)
        self._queue = SubmissionQueue(MAX_WAITING, now)
        self._now, self._mistakes, self._refused_s = now, 0, 0.0
        self.refusals = Refusals(run.ledger, now)

    @property
    def has_room(self) -> bool:
        """Whether another submission would be copied at once."""
        return len(self._busy) < MAX_WAITING and not self._queue.are_paused

    def receive(
        self,
        model_path: str,
        key: str = "",
        gpu: str = "",
        *,
        queues: bool = False,
        claims: SubmissionClaims = NO_CLAIMS,
    ) -> SubmissionReceived:
        """Gives a submission its receipt and freezes its files.

        Args:
            model_path: The folder as the agent named it.
            key: The request's idempotency key, if it has one. If a request with this key was received before, its
                receipt is returned.
            gpu: The GPUs that the agent asks for, separated by commas; empty: any.
            queues: Whether it is received although it has to wait for its turn.
            claims: What the agent says of it.

        Raises:
            SubmissionDeferredError: It has to wait, and does not queue.
            InvalidSubmissionError: It is refused; this is recorded.
        """
        try:
            if (known := _known(self._run.ledger.entries() if key else [], key, model_path, gpu)) is not None:
                return known
            received = self._receive(model_path, key, gpu, queues, claims)
        except InvalidSubmissionError as refusal:
            self.refuse_unreceived(model_path, str(refusal))
            raise
        except _RepeatedError as repeated:
            return repeated.received
        self._sources.freeze(received.receipt, self._run.workspace, received.model_path)
        return received

    def _receive(
        self, model_path: str, key: str, gpu: str, queues: bool, claims: SubmissionClaims
    ) -> SubmissionReceived:
        with self._lock:
            if not (queues or self.has_room):
                raise SubmissionDeferredError("others are being graded")
            self._check_path(model_path)
            received = self._run.ledger.append_next(
                lambda entries: self._receipt(model_path, key, gpu, entries).model_copy(update={"claims": claims})
            )
            self._busy.add(received.receipt)
            return received

    def refuse_unreceived(self, model_path: str, reason: str) -> None:
        """Records a refusal without a receipt."""
        self.refusals.note(self._run.clock.elapsed_s(), model_path, reason)

    def claim_unfinished(self) -> list[SubmissionReceived]:
        """Claims for this process the submissions that an earlier service, or a failed copy, left unfinished."""
        with self._lock:
            unfinished = open_receipts(self._run.ledger.entries())
            left = [each for each in unfinished if each.receipt not in self._busy]
            self._busy.update(each.receipt for each in left)
            self._sources.keep_only({each.receipt for each in unfinished} | self._busy)
            return left

    def release(self, received: SubmissionReceived) -> None:
        """Ends the work of this process on a submission, which makes room for another."""
        self._busy.discard(received.receipt)
        self._queue.end(received.receipt)

    def accept(self, received: SubmissionReceived, *, again: bool = False) -> SubmissionAccepted:
        """Copies and checks a received submission, when it is its turn.

        Args:
            received: The submission's receipt.
            again: Whether an earlier service has tried before.

        Raises:
            InvalidSubmissionError: It cannot be graded; this is recorded as a refusal.
            InfrastructureError: The grader's machine failed. While the agent is running and can submit again, this is
                recorded as a refusal, too; after its end, the receipt stays open for another try.
        """
        self._queue.take(received.receipt)
        began = self._now()
        try:
            accepted = self._accept(received)
            self._sources.release(received.receipt)
            return accepted
        except InvalidSubmissionError as refusal:
            self._note_mistake(self._now() - began)
            reason = f"{AGAIN if again else ''}{refusal}"
            self._refuse(received, reason)
            raise InvalidSubmissionError(bounded(reason, MAX_REASON)) from refusal
        except InfrastructureError as failure:
            if is_agent_at_work(self._run.ledger.entries()):
                self._refuse(received, str(failure))
            raise
        except _AlreadyResolvedError as error:
            raise InfrastructureError("another grading service has accepted or refused this submission") from error

    def prune(self) -> None:
        """Removes checkpoints that the run no longer needs."""
        with self._lock:
            mark_unneeded(self._run)
        sweep(self._run)

    def end_pause(self) -> None:
        """Ends a delay; after the agent's end, it would only delay the end of the run."""
        self._queue.pause(0.0)

    def _note_mistake(self, seconds: float) -> None:
        with self._lock:
            self._mistakes, self._refused_s = self._mistakes + 1, self._refused_s + seconds
            pause_s = self._mistakes / 10 if self._mistakes > MISTAKES else 0.0
            pause_s += seconds if self._refused_s > REFUSED_S else 0.0
        if pause_s and is_agent_at_work(self._run.ledger.entries()):
            self._queue.pause(min(LONGEST_PAUSE_S, pause_s))

    def _check_path(self, model_path: str) -> None:
        """Refuses the most frequent mistakes of agents before they cost anything."""
        if len(model_path) > MAX_PATH:
            raise InvalidSubmissionError(f'"model_path" has more than {MAX_PATH} characters; give a shorter path')
        root = self._run.workspace
        path = model_path.removeprefix(f"{root}/")
        with contextlib.suppress(OSError, ValueError), UntrustedFolder.at(root) as workspace:
            try:
                workspace.folder(path).close()
            except FileNotFoundError as error:
                raise InvalidSubmissionError(
                    f"there is no folder {model_path}; save the checkpoint first, then submit its folder"
                ) from error

    def _receipt(self, model_path: str, key: str, gpu: str, entries: list[Entry]) -> SubmissionReceived:
        """Checks deadline and quotas and returns the next receipt."""
        if (known := _known(entries, key, model_path, gpu)) is not None:
            raise _RepeatedError(known)
        clock = self._run.clock
        if not any(isinstance(entry.event, AgentStarted) for entry in entries):
            raise BudgetSpentError("the run has not started")
        if not is_agent_at_work(entries) or clock.read_state().running_since is None or clock.remaining_s() <= 0:
            raise BudgetSpentError("the budget has ended; submissions are no longer accepted")
        spec, left = self._run.spec, quota_left(self._run, entries)
        if left.spent == "submissions":
            raise BudgetSpentError(f"the quota of {spec.submissions_quota} submissions is used up")
        if left.spent:
            raise BudgetSpentError(f"the quota of {spec.grading_quota_s:.0f} s of grading is used up")
        given = sum(isinstance(entry.event, SubmissionReceived) for entry in entries)
        return SubmissionReceived(
            receipt=given + 1, elapsed_s=clock.elapsed_s(), model_path=model_path, key=key, gpu=gpu
        )

    def _accept(self, received: SubmissionReceived) -> SubmissionAccepted:
        incoming = self._run.checkpoints / f".incoming-{uuid.uuid4().hex}"
        try:
            with self._crash_mark(received):
                copied = self._copy(received, incoming)
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
            self.copying.discard(received.receipt)
            shutil.rmtree(incoming, ignore_errors=True)

    @contextlib.contextmanager
    def _turn(self, received: SubmissionReceived) -> Iterator[None]:
        """Waits until no other submission is copied or merged."""
        with self._copy_lock:
            self.copying.add(received.receipt)
            yield

    @contextlib.contextmanager
    def _crash_mark(self, received: SubmissionReceived) -> Iterator[None]:
        """Counts the attempts to copy a submission in a file, which remains if the process crashes meanwhile."""
        marks = self._run.checkpoints / f".attempts-{received.receipt}"
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

    def _copy(self, received: SubmissionReceived, target: Path) -> KeptCopy:
        base_model = base_model_of(self._run)
        try:
            source = self._sources.find(received.receipt) or Source(self._run.workspace, received.model_path)
            complete = self._run.need("setup", SetupRecord).complete_config
            merge = AdapterMerger(self._settings) if self._run.spec.merge_adapters else None
            links, check = self._sources.links, partial(check_apart, self._settings)
            turn = partial(self._turn, received)
            return copy_submission(source.root, source.path, target, base_model, links, complete, merge, check, turn)
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

        with contextlib.suppress(_AlreadyResolvedError):
            self._run.ledger.append_next(choose)


def _known(entries: list[Entry], key: str, model_path: str, gpu: str) -> SubmissionReceived | None:
    """Returns the submission that was received with an idempotency key; None if there is none.

    Raises:
        InvalidSubmissionError: The key belongs to a different submission.
    """
    events = [entry.event for entry in entries if key and isinstance(entry.event, SubmissionReceived)]
    known = next((event for event in events if event.key == key), None)
    if known is not None and (known.model_path, known.gpu) != (model_path, gpu):
        raise InvalidSubmissionError(
            f"this Idempotency-Key belongs to another submission, that of {bounded(known.model_path, 200)}; use a new "
            "key for each submission"
        )
    return known


def _still_open(received: SubmissionReceived, entries: list[Entry]) -> list[Entry]:
    """Returns the entries if the receipt is still open in them."""
    if received.receipt not in {each.receipt for each in open_receipts(entries)}:
        raise _AlreadyResolvedError
    return entries


def _accepted(
    received: SubmissionReceived, copied: KeptCopy, revision: str | None, entries: list[Entry]
) -> SubmissionAccepted:
    return SubmissionAccepted(
        submission_id=1 + sum(isinstance(entry.event, SubmissionAccepted) for entry in entries),
        elapsed_s=received.elapsed_s,
        model_path=received.model_path,
        weights_digest=copied.digest,
        code_revision=revision,
        receipt=received.receipt,
        adapter=copied.adapter,
    )
