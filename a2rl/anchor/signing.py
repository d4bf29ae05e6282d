"""Signs the heads of ledgers with a local key, and keeps the signatures of a run up to date with its ledger."""

import time
from collections.abc import Sequence
from pathlib import Path

from a2rl.anchor.history import SignedHistory
from a2rl.anchor.keys import SigningKey, load_public_key
from a2rl.anchor.params import AnchorParams
from a2rl.anchor.signature import Head, HeadSignature, add_signature, read_signatures
from a2rl.core.errors import UsageError
from a2rl.core.locks import file_lock
from a2rl.run.directory import RunDir
from a2rl.run.ledger import Row

LOCK = ".signing.lock"
LOCK_TIMEOUT_S = 30.0


class Signer:
    """Signs with a key in a file, and nothing but continuations of what it has signed."""

    def __init__(self, key: Path) -> None:
        self._key = SigningKey.load(key)
        self.history = SignedHistory.beside(key)

    @property
    def key_id(self) -> str:
        """The public key, in hexadecimal digits."""
        return self._key.id

    def sign(self, run_id: str, rows: Sequence[Row]) -> HeadSignature:
        """Signs the head after these entries, which follow those that were signed before; none repeats a signature.

        The head is remembered before the signature exists.

        Raises:
            IntegrityError: They do not follow.
            InfrastructureError: The history cannot be used.
        """
        head = self.history.extend(run_id, rows)
        return HeadSignature.make(run_id, head, round(time.time(), 3), self._key.id, self._key.sign)


def check_keys(params: AnchorParams, root: Path) -> str:
    """Checks the keys of a checkout before runs: they are read only when the first head is signed, or the run verified.

    Returns:
        Which keys there are, as a phrase; empty if there are none.

    Raises:
        UsageError: A key cannot be used, or readers would not trust what it signs.
    """
    trusted = {path: load_public_key(root / path) for path in params.public_keys}
    if not params.key:
        return f"{len(trusted)} public keys" if trusted else ""
    signing = SigningKey.load(root / params.key).id
    if trusted and signing not in trusted.values():
        raise UsageError(
            f"anchor.key {params.key} does not belong to any key in anchor.public_keys ({', '.join(trusted)}), so "
            "`a2rl verify` would refuse every run: add its public key there"
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
        InfrastructureError: The signer's history cannot be used, or the file cannot be written.
    """
    with file_lock(run.root / LOCK, f"another process signs run {run.id}", LOCK_TIMEOUT_S):
        head, signed = head_of(run), read_signatures(run.root)
        if head is None:
            return None
        rows = run.ledger.rows()[: head.seq]
        if not signed or (signed[-1].seq, signed[-1].hash) != (head.seq, head.hash):
            known = signer.history.known(run.id, rows)
            add_signature(run.root, signer.sign(run.id, rows[known.seq :]))
        return head
