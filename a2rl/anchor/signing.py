"""Keeps the signatures of a run up to date with its ledger."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from a2rl.anchor.keys import SigningKey, load_public_key
from a2rl.anchor.params import AnchorParams
from a2rl.anchor.signature import Head, add_signature, read_signatures
from a2rl.anchor.signer import LocalSigner, RemoteSigner, Signer
from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.locks import file_lock
from a2rl.run.directory import RunDir
from a2rl.run.ledger import Row

LOCK = ".signing.lock"
LOCK_TIMEOUT_S = 30.0
MAX_BODY_CHARS = 4 << 20
"""The most characters of events that are sent to the signer at once. JSON escapes may make six bytes of each."""


def open_signer(params: AnchorParams, root: Path) -> Signer | None:
    """Returns the signer of a checkout; None if heads are not signed.

    Raises:
        UsageError: The key cannot be used.
    """
    if params.signer:
        return RemoteSigner(root / params.signer)
    return LocalSigner(root / params.key) if params.key else None


def check_keys(params: AnchorParams, root: Path) -> str:
    """Checks the keys of a checkout before runs: they are read only when the first head is signed, or the run verified.

    Returns:
        Which keys there are, as a phrase; empty if there are none.

    Raises:
        UsageError: A key cannot be used, or readers would not trust what it signs.
    """
    trusted = {path: load_public_key(root / path) for path in params.public_keys}
    if not params.key or params.signer:
        return f"{len(trusted)} public keys" if trusted else ""
    signing = SigningKey.load(root / params.key).id
    if trusted and signing not in trusted.values():
        raise UsageError(
            f"anchor.key {params.key} does not belong to any key in anchor.public_keys ({', '.join(trusted)}), so "
            "`a2rl verify` would refuse every run: add its .pub file there"
        )
    return f"signs as {signing[:16]}"


def head_of(run: RunDir) -> Head | None:
    """Returns the head of a run's ledger; None if it is empty."""
    rows = run.ledger.rows()
    return Head(seq=rows[-1].seq, hash=rows[-1].hash) if rows else None


def sign_heads(run: RunDir, signer: Signer) -> Head | None:
    """Signs the head of a run's ledger, unless its last signature is of that head.

    Returns:
        The signed head; None if the ledger is empty.

    Raises:
        IntegrityError: The ledger does not continue what the signer has signed for this run.
        InfrastructureError: The signer cannot be used, or the file cannot be written.
    """
    with file_lock(run.root / LOCK, f"another process signs run {run.id}", LOCK_TIMEOUT_S):
        head, signed = head_of(run), read_signatures(run.root)
        if head is None:
            return None
        rows = run.ledger.rows()[: head.seq]
        if signed and (signed[-1].seq, signed[-1].hash) == (head.seq, head.hash):
            return head
        for part in _parts(_unsigned(run, rows, signer.head(run.id))):
            add_signature(run.root, signer.sign(run.id, part))
        return head


def _unsigned(run: RunDir, rows: Sequence[Row], known: Head) -> Sequence[Row]:
    """Returns the entries that follow the signer's head.

    Raises:
        IntegrityError: The signer's head is not in the ledger.
    """
    if known.seq == 0:
        return rows
    if known.seq > len(rows) or rows[known.seq - 1].hash != known.hash:
        raise IntegrityError(
            f"the signer has signed another history of run {run.id}, up to entry {known.seq}: its ledger was rewritten "
            "or cut off"
        )
    return rows[known.seq :]


def _parts(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Divides entries into requests. Without entries there is one request: to sign the known head once more."""
    part: list[Row] = []
    size = 0
    for row in rows:
        if part and size + len(row.body) > MAX_BODY_CHARS:
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row.body)
    yield part
