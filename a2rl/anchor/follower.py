"""Signs and publishes the heads of runs in the background, so that no network can delay a run.

What is missing is noted in `logs/anchor-behind.txt`; `a2rl report RUN` asks for it again.
"""

from pathlib import Path

from a2rl.anchor.params import AnchorParams
from a2rl.anchor.signing import Signer, head_of, sign_heads
from a2rl.anchor.timestamp import Publisher
from a2rl.core.errors import A2rlError
from a2rl.run.directory import RunDir
from a2rl.run.events import RunClosed

BEHIND = "anchor-behind.txt"
MAX_PROBLEM_CHARS = 300


class Anchor:
    """Brings the signatures and the published heads of runs up to date."""

    def __init__(self, params: AnchorParams, root: Path) -> None:
        self._signer = Signer(root / params.key) if params.key else None
        url, every_s, timeout_s = params.publish_timestamp, params.publish_every_s, params.publish_timeout_s
        self._publisher = Publisher(url, every_s, timeout_s) if url else None

    def update(self, run: RunDir) -> None:
        """Signs the head of a run and publishes it where that is due.

        Raises:
            IntegrityError: The signer refused.
            InfrastructureError: The signer or the time-stamp service failed; calling this again repeats it.
        """
        head = sign_heads(run, self._signer) if self._signer else head_of(run)
        if head is not None and self._publisher is not None:
            last = run.ledger.entries(after=head.seq - 1)
            self._publisher.publish(run, head, bool(last) and isinstance(last[0].event, RunClosed))


def mark_anchor_behind(run: RunDir, problem: str) -> None:
    """Notes why a head of a run is not signed or published; an empty problem removes the note."""
    note = run.logs / BEHIND
    try:
        if problem:
            note.write_text(" ".join(problem.split())[:MAX_PROBLEM_CHARS] + "\n", encoding="utf-8")
        else:
            note.unlink(missing_ok=True)
    except OSError:
        return  # for example a full disk, which the stages report


def anchor_behind(run: RunDir) -> str:
    """Returns a line for the user if a head of a run is not signed or published; empty if all are."""
    try:
        problem = (run.logs / BEHIND).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return f"The ledger is not anchored to its end ({problem}): `a2rl report {run.id}` tries again."


def catch_up(run: RunDir, anchor: Anchor) -> None:
    """Signs and publishes what is missing, and notes whether that worked; it does not raise."""
    try:
        anchor.update(run)
    except A2rlError as error:
        mark_anchor_behind(run, str(error))
    else:
        mark_anchor_behind(run, "")
