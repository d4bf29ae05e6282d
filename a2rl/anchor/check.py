"""Checks the signatures of a run against its ledger, and says what they prove."""

import time
from collections.abc import Collection, Sequence
from itertools import pairwise

from a2rl.anchor.signature import HeadSignature, read_signatures
from a2rl.core.errors import IntegrityError
from a2rl.run.directory import RunDir
from a2rl.run.ledger import Row

SKEW_S = 60.0
"""How far the clocks of a signer and of a pipeline may differ, with the time that a request takes."""
LATE_S = 900.0
"""The longest time between an entry and its signature. A signature that came later does not prove when the entry was
written."""
PENDING_S = 120.0
"""How young an entry must be to be without a signature."""


def check_signatures(run: RunDir, trusted: Collection[str], now: float | None = None) -> str:
    """Checks all signatures of a run, their order, and their times against those of the entries.

    Args:
        run: The run.
        trusted: The ids of the public keys that count; empty: any, which proves nothing against its holder.
        now: The present time in Unix seconds.

    Returns:
        What was found, in words.

    Raises:
        IntegrityError: A signature is missing or wrong; the message names the first.
    """
    signatures, rows = read_signatures(run.root), run.ledger.rows()
    if not signatures:
        if trusted:
            raise IntegrityError("the run is not signed: it was made without a signer, or its signatures were removed")
        return ""
    _check_each(run.id, signatures, rows, trusted)
    _check_order(signatures)
    _check_times(signatures, rows)
    _check_end(signatures[-1], rows, time.time() if now is None else now)
    latest = max(each.time - rows[each.seq - 1].at for each in signatures)
    return f"{len(signatures)} signatures, the slowest {max(0.0, latest):.0f} s after its entry"


def _check_each(
    run_id: str, signatures: Sequence[HeadSignature], rows: Sequence[Row], trusted: Collection[str]
) -> None:
    for number, each in enumerate(signatures, start=1):
        if trusted and each.key not in trusted:
            raise IntegrityError(f"signature {number} is by key {each.key[:16]}, which is not trusted")
        if not each.is_of(run_id):
            raise IntegrityError(f"signature {number} is not a signature of this run's entry {each.seq}")
        if each.seq > len(rows):
            raise IntegrityError(f"entry {each.seq} was signed, but the ledger ends with entry {len(rows)}")
        if rows[each.seq - 1].hash != each.hash:
            raise IntegrityError(f"entry {each.seq} is not the one that was signed: the ledger was rewritten")


def _check_order(signatures: Sequence[HeadSignature]) -> None:
    for before, after in pairwise(signatures):
        if after.seq < before.seq or after.time < before.time:
            raise IntegrityError(f"the signature of entry {after.seq} is older than that of entry {before.seq}")


def _check_times(signatures: Sequence[HeadSignature], rows: Sequence[Row]) -> None:
    """Checks that each entry was written after the signature before it, and not long before its own."""
    after, done = 0.0, 0
    for each in signatures:
        for row in rows[done : each.seq]:
            if row.at < after - SKEW_S:
                raise IntegrityError(f"entry {row.seq} claims a time before entry {done} was signed")
            if row.at > each.time + SKEW_S:
                raise IntegrityError(f"entry {row.seq} claims a time after it was signed")
            if each.time - row.at > LATE_S:
                raise IntegrityError(
                    f"entry {row.seq} was signed {each.time - row.at:.0f} s after the time that it claims: nothing "
                    "proves that time"
                )
        after, done = each.time, max(done, each.seq)


def _check_end(last: HeadSignature, rows: Sequence[Row], now: float) -> None:
    left = rows[last.seq :]
    if left and now - left[0].at > PENDING_S:
        raise IntegrityError(f"entries {left[0].seq} to {left[-1].seq} are not signed: `a2rl report` signs the rest")
