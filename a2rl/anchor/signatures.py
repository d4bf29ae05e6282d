"""The signatures of a ledger's heads, in `signatures.jsonl` beside the ledger: one JSON object in each line.

A head is the hash of an entry, and so stands for all entries up to it. The signed message names the run, so that a
signature cannot be used for another one, and the time at which the signer signed. `check_signatures` compares all of
them with the ledger, and says what they prove.

Keys are Ed25519 keys in PEM files: the signer's private key, and the public keys that readers trust. A key is named by
its public part, 64 hexadecimal digits, so a signature says which key it needs.
"""

import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from pydantic import Field, ValidationError

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.event_log import append_whole
from a2rl.core.files import StrictModel, canonical_json, machine_failure
from a2rl.run.directory import RunDir
from a2rl.run.ledger import Row

MAX_KEY_BYTES = 1 << 16
FOR_OTHERS = 0o077
"""The permission bits of a private key's file that nobody but its owner may have."""


class SigningKey:
    """A private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.id = _id_of(key.public_key())

    def sign(self, message: bytes) -> str:
        """Returns the signature (128 hexadecimal digits)."""
        return self._key.sign(message).hex()

    @classmethod
    def load(cls, path: Path) -> "SigningKey":
        """Reads a private key.

        Raises:
            UsageError: There is no such file, other users can read it, or it has no Ed25519 key.
        """
        if _readable_by_others(path):
            raise UsageError(f"other users can read the private key {path}: `chmod 600 {path}`")
        try:
            key = load_pem_private_key(_content(path), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise UsageError(f"{path} is not a private key in PEM without a password: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise UsageError(f"{path} is not an Ed25519 key: `openssl genpkey -algorithm ed25519 -out FILE` makes one")
        return cls(key)


def load_public_key(path: Path) -> str:
    """Reads a public key from a PEM file and returns its id.

    Raises:
        UsageError: There is no such file, or it has no Ed25519 public key.
    """
    try:
        key = load_pem_public_key(_content(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path} is not a public key in PEM: give the public part of the signer's key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{path} is not an Ed25519 key: give the public part of the signer's key")
    return _id_of(key)


def _id_of(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_KEY_BYTES)
    except OSError as error:
        raise UsageError(f"the key {path} cannot be read: {error.strerror}") from error


def _readable_by_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & FOR_OTHERS)
    except OSError:
        return False  # reading it says why


FILE = "signatures.jsonl"
PURPOSE = "a2rl ledger head 1"
"""Begins each signed message, so that a signature for something else never counts as one of a head."""
MAX_BYTES, MAX_LINE = 64 << 20, 1 << 20
SKEW_S = 60.0
"""How far the clocks of a signer and of a pipeline may differ, with the time that a request takes."""
LATE_S = 900.0
"""The longest time between an entry and its signature. A signature that came later does not prove when the entry was
written."""
PENDING_S = 120.0
"""How young an entry must be to be without a signature."""


class Head(StrictModel):
    """The head of a ledger: its last entry."""

    seq: int = Field(ge=0)
    hash: str = Field(pattern="^[0-9a-f]{64}$")


class HeadSignature(Head):
    """A signed head."""

    seq: int = Field(ge=1)
    time: float
    """When it was signed, by the signer's clock, in Unix seconds."""
    key: str = Field(pattern="^[0-9a-f]{64}$")
    """The public key, in hexadecimal digits."""
    signature: str = Field(pattern="^[0-9a-f]{128}$")

    @classmethod
    def make(cls, run_id: str, head: Head, time: float, key: SigningKey) -> "HeadSignature":
        """Signs a head."""
        signature = key.sign(_message(run_id, head, time))
        return cls(seq=head.seq, hash=head.hash, time=time, key=key.id, signature=signature)

    def is_of(self, run_id: str) -> bool:
        """Says whether the signature is that of its key for this head of this run."""
        message = _message(run_id, self, self.time)
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key)).verify(bytes.fromhex(self.signature), message)
        except (InvalidSignature, ValueError):
            return False
        return True


def _message(run_id: str, head: Head, time: float) -> bytes:
    return f"{PURPOSE}\n{canonical_json([run_id, head.seq, head.hash, time])}".encode()


def read_signatures(folder: Path) -> list[HeadSignature]:
    """Returns the signatures in a run's directory, in their order in the file; none if there is no file.

    Raises:
        IntegrityError: A line is not a signature.
    """
    path = folder / FILE
    if not path.exists():
        return []
    if path.stat().st_size > MAX_BYTES:
        raise IntegrityError(f"{path} is larger than {MAX_BYTES >> 20} MiB, which no signer writes")
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            found.append(HeadSignature.model_validate_json(line))
        except ValidationError as error:
            raise IntegrityError(f"{path}, line {number}: not a signature") from error
    return found


def drop_half_line(folder: Path) -> None:
    """Removes what a process that was killed may have left at the end of the file.

    Raises:
        InfrastructureError: The file cannot be written.
    """
    try:
        with suppress(FileNotFoundError), (folder / FILE).open("r+b") as file:
            end = max(0, file.seek(0, os.SEEK_END) - MAX_LINE)
            file.seek(end)
            file.truncate(end + file.read(MAX_LINE).rfind(b"\n") + 1)
    except OSError as error:
        raise machine_failure(f"write {folder / FILE}", error) from error


def add_signature(folder: Path, signature: HeadSignature) -> None:
    """Adds a signature to the file.

    Raises:
        InfrastructureError: The file cannot be written.
    """
    try:
        with (folder / FILE).open("ab", buffering=0) as file:
            append_whole(file, signature.model_dump_json().encode() + b"\n")
    except OSError as error:
        raise machine_failure(f"write {folder / FILE}", error) from error


def check_signatures(
    run: RunDir, trusted: Collection[str], now: float | None = None, pending_s: float = PENDING_S
) -> str:
    """Checks all signatures of a run, their order, and their times against those of the entries.

    Args:
        trusted: The ids of the public keys that count; empty: any, which proves nothing against its holder.
        pending_s: How young an entry must be to be without a signature; 0: each needs one.

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
    _check_end(signatures[-1], rows, time.time() if now is None else now, pending_s)
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


def _check_end(last: HeadSignature, rows: Sequence[Row], now: float, pending_s: float) -> None:
    left = rows[last.seq :]
    # A time in the future is none: with it, a forged end would never be old enough to need a signature.
    if left and not (pending_s and -SKEW_S <= now - left[0].at <= pending_s):
        how = "it is too late for that" if now - left[0].at > LATE_S else "`a2rl report` signs the rest"
        raise IntegrityError(f"entries {left[0].seq} to {left[-1].seq} are not signed: {how}")
