"""The door: what arrives in time gets a receipt, is copied in peace, and ends as refused or accepted.

The deadline, the quotas and the receipt are one transaction of the ledger, before the first byte is copied: what has a
receipt counts, however long the copy takes and whatever dies meanwhile. A service that is started again copies anew
what an earlier one did not finish. When the ledger says that the agent is gone, nothing gets a receipt any more.
"""

import contextlib
import errno
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from a2rl.beneath import Folder
from a2rl.checkpoint import copy_submission, weights_digest
from a2rl.code_history import snapshot_code
from a2rl.errors import A2rlError, InfrastructureError, InvalidSubmission
from a2rl.events import AgentStarted, SubmissionAccepted, SubmissionReceived, SubmissionRefused
from a2rl.grading.chain import is_agent_at_work, open_receipts
from a2rl.grading.limits import MAX_WAITING
from a2rl.grading.quota import quota_left
from a2rl.grading.refusals import MAX_PATH, MAX_REASON, Refusals, bounded
from a2rl.inputs import base_model_of
from a2rl.ledger import Entry
from a2rl.run import RunDir

MISTAKES, LONGEST_PAUSE_S = 20, 60.0
"""After so many refused copies the door stays shut for a while after each further one: a tenth of their number in
seconds, so long at most. Each costs the grader some work, and two events."""
AGENTS_ERRORS = {
    errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.EINVAL, errno.ENXIO, errno.EXDEV, errno.ESTALE, errno.EFBIG, errno.EOVERFLOW, errno.ETXTBSY, errno.EBUSY,
}  # fmt: skip
"""What a folder can be made to say; other errors are the machine's."""
UNREADABLE = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading a hostile file may raise."""
MAX_DEATHS = 2
"""A submission over which the service has died more often is refused, or it would never do anything else."""
AGAIN = "the grading service was restarted while it copied this, and it cannot be copied again: "


class BudgetSpent(InvalidSubmission):
    """The deadline has passed or a quota is used up."""


class NoTurn(A2rlError):
    """Not now: as many as may be are being copied or graded, or too many were refused. It waits for its turn."""


class _EndedAlready(Exception):
    """Another service has ended this chain meanwhile."""


class Submissions:
    """Receives, copies and accepts the submissions of a run. Safe to call from several threads."""

    def __init__(self, run: RunDir, now: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._one_copy = threading.Lock()
        """Two copies at a time would each count on the same room on the disk."""
        self._busy: set[int] = set()
        """Receipts whose chain has not come to its end in this process."""
        self._now, self._mistakes, self._shut_until = now, 0, 0.0
        self.refusals = Refusals(run.ledger, now)

    @property
    def has_room(self) -> bool:
        """Whether another one may be received now."""
        return len(self._busy) < MAX_WAITING and self._now() >= self._shut_until

    def receive(self, model_path: str) -> SubmissionReceived:
        """Gives a receipt.

        Raises:
            NoTurn: not now.
            InvalidSubmission: it is turned away; recorded as refused.
        """
        try:
            with self._lock:
                if not self.has_room:
                    raise NoTurn("others are being graded")
                self._look(model_path)
                received = self._run.ledger.append_next(lambda entries: self._receipt(model_path, entries))
                self._busy.add(received.receipt)
                return received
        except InvalidSubmission as refusal:
            self.turn_away(model_path, str(refusal))
            raise

    def turn_away(self, model_path: str, reason: str) -> None:
        """Records a refusal without a receipt."""
        self.refusals.note(self._run.clock.elapsed_s(), model_path, reason)

    def take_up(self) -> list[SubmissionReceived]:
        """What an earlier service, or a failed copy, left without an end; from now on it is under way here."""
        with self._lock:
            left = [each for each in open_receipts(self._run.ledger.entries()) if each.receipt not in self._busy]
            self._busy.update(each.receipt for each in left)
            return left

    def release(self, received: SubmissionReceived) -> None:
        """Its turn is over."""
        self._busy.discard(received.receipt)

    def accept(self, received: SubmissionReceived, *, again: bool = False) -> SubmissionAccepted:
        """Copies a submission that was received, and checks it.

        Args:
            again: an earlier service was at it.

        Raises:
            InvalidSubmission: it cannot be graded; recorded as refused.
            InfrastructureError: the grader's machine failed. While the agent can submit again, that is recorded as
                refused, too; when it is gone, the receipt stays open, to be tried again.
        """
        try:
            return self._accept(received)
        except InvalidSubmission as refusal:
            self._note_mistake()
            reason = f"{AGAIN if again else ''}{refusal}"
            self._refuse(received, reason)
            raise InvalidSubmission(bounded(reason, MAX_REASON)) from refusal
        except InfrastructureError as failure:
            if is_agent_at_work(self._run.ledger.entries()):
                self._refuse(received, str(failure))
            raise
        except _EndedAlready as error:
            raise InfrastructureError("another grading service has taken this submission") from error

    def _note_mistake(self) -> None:
        self._mistakes += 1
        if self._mistakes > MISTAKES:
            self._shut_until = self._now() + min(LONGEST_PAUSE_S, self._mistakes / 10)

    def _look(self, model_path: str) -> None:
        """Turns away, before it costs anything, what agents most often get wrong."""
        if len(model_path) > MAX_PATH:
            raise InvalidSubmission(f'"model_path" has more than {MAX_PATH} characters; give a shorter path')
        root = self._run.workspace
        path = model_path.removeprefix(f"{root}/")
        with contextlib.suppress(OSError, ValueError), Folder.at(root) as workspace:
            try:
                workspace.folder(path).close()
            except FileNotFoundError as error:
                raise InvalidSubmission(
                    f"there is no folder {model_path}; save the checkpoint first, then submit its folder"
                ) from error

    def _receipt(self, model_path: str, entries: list[Entry]) -> SubmissionReceived:
        clock = self._run.clock
        if not any(isinstance(entry.event, AgentStarted) for entry in entries):
            raise BudgetSpent("the run has not started")
        if not is_agent_at_work(entries) or clock.state.running_since is None or clock.remaining_s() <= 0:
            raise BudgetSpent("the budget has ended; submissions are no longer taken")
        spec, left = self._run.spec, quota_left(self._run, entries)
        if left.spent == "submissions":
            raise BudgetSpent(f"the quota of {spec.submissions_quota} submissions is used up")
        if left.spent:
            raise BudgetSpent(f"the quota of {spec.grading_quota_s:.0f} s of grading is used up")
        given = sum(isinstance(entry.event, SubmissionReceived) for entry in entries)
        return SubmissionReceived(receipt=given + 1, elapsed_s=clock.elapsed_s(), model_path=model_path)

    def _accept(self, received: SubmissionReceived) -> SubmissionAccepted:
        incoming = self._run.checkpoints / f".incoming-{uuid.uuid4().hex}"
        try:
            with self._one_copy, self._survived(received):
                digest = self._copy(received, incoming)
            revision = self._snapshot(received)
            with self._lock:
                if not (kept := self._run.checkpoint(digest)).exists():
                    incoming.rename(kept)
                return self._run.ledger.append_next(
                    lambda entries: _accepted(received, digest, revision, _still_open(received, entries))
                )
        except (A2rlError, _EndedAlready):
            raise
        except Exception as error:  # whatever it is, the chain must go on
            raise InfrastructureError(f"the grader could not take the submission: {error!r}; submit again") from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    @contextlib.contextmanager
    def _survived(self, received: SubmissionReceived) -> Iterator[None]:
        """Keeps a mark for every attempt at a submission until it is over; what is left of one that was not, counts."""
        marks = self._run.checkpoints / f".attempts-{received.receipt}"
        try:
            if marks.exists() and marks.stat().st_size > MAX_DEATHS:
                raise InvalidSubmission("the grading service died each time it read this; save the checkpoint again")
            with marks.open("ab") as file:
                file.write(b".")
            yield
        finally:
            marks.unlink(missing_ok=True)

    def _copy(self, received: SubmissionReceived, target: Path) -> str:
        base_model = base_model_of(self._run)
        try:
            copy_submission(self._run.workspace, received.model_path, target, base_model)
            return weights_digest(target)
        except OSError as error:
            if not self._is_agents(error, base_model):  # such as the base model's folder taken away
                raise
            raise InvalidSubmission(
                f"the folder cannot be read ({error.strerror}); save the checkpoint again and submit its folder"
            ) from error
        except UNREADABLE as error:
            raise InvalidSubmission(
                f"the checkpoint cannot be read ({type(error).__name__}); save it again with save_pretrained"
            ) from error

    def _is_agents(self, error: OSError, base_model: Path) -> bool:
        """Whether the agent's folder is the reason. Names in it are relative: it is read by open folders."""
        where = str(error.filename or base_model)
        ours = where.startswith((str(base_model), str(self._run.checkpoints)))
        return error.errno in AGENTS_ERRORS and not ours

    def _snapshot(self, received: SubmissionReceived) -> str | None:
        """The code's history is worth having, but no submission is lost for it."""
        message = f"submission of {bounded(received.model_path, 200)}"
        try:
            return snapshot_code(self._run.workspace / "code", self._run.code, message)
        except (A2rlError, OSError, ValueError):
            return None

    def _refuse(self, received: SubmissionReceived, reason: str) -> None:
        def choose(entries: list[Entry]) -> SubmissionRefused:
            _still_open(received, entries)
            return SubmissionRefused(
                elapsed_s=self._run.clock.elapsed_s(),
                model_path=bounded(received.model_path, MAX_PATH),
                reason=bounded(reason, MAX_REASON),
                receipt=received.receipt,
            )

        with contextlib.suppress(_EndedAlready):
            self._run.ledger.append_next(choose)


def _still_open(received: SubmissionReceived, entries: list[Entry]) -> list[Entry]:
    if received.receipt not in {each.receipt for each in open_receipts(entries)}:
        raise _EndedAlready
    return entries


def _accepted(
    received: SubmissionReceived, digest: str, revision: str | None, entries: list[Entry]
) -> SubmissionAccepted:
    return SubmissionAccepted(
        submission_id=1 + sum(isinstance(entry.event, SubmissionAccepted) for entry in entries),
        elapsed_s=received.elapsed_s,
        model_path=received.model_path,
        weights_digest=digest,
        code_revision=revision,
        receipt=received.receipt,
    )
