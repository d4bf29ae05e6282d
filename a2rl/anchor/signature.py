"""The signatures of a ledger's heads, in `signatures.jsonl` beside the ledger: one JSON object in each line.

A head is the hash of an entry, and so stands for all entries up to it. The signed message names the run, so that a
signature cannot be used for another one, and the time at which the signer signed.
"""

from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from a2rl.anchor.keys import is_signed
from a2rl.core.errors import IntegrityError
from a2rl.core.files import canonical_json, machine_failure

FILE = "signatures.jsonl"
PURPOSE = "a2rl ledger head 1"
"""Begins each signed message, so that a signature for something else never counts as one of a head."""
MAX_BYTES = 64 << 20


class Head(BaseModel):
    """The head of a ledger: its last entry."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int = Field(ge=0)
    hash: str = Field(pattern="^[0-9a-f]{64}$")


class HeadSignature(BaseModel):
    """A signed head."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int = Field(ge=1)
    hash: str = Field(pattern="^[0-9a-f]{64}$")
    time: float
    """When it was signed, by the signer's clock, in Unix seconds."""
    key: str = Field(pattern="^[0-9a-f]{64}$")
    """The public key, in hexadecimal digits."""
    signature: str = Field(pattern="^[0-9a-f]{128}$")

    @classmethod
    def make(cls, run_id: str, head: Head, time: float, key: str, sign: Callable[[bytes], str]) -> "HeadSignature":
        """Signs a head.

        Args:
            run_id: The run.
            head: Its head.
            time: The time, in Unix seconds.
            key: The id of the key.
            sign: Returns the key's signature of a message.
        """
        signature = sign(_message(run_id, head.seq, head.hash, time))
        return cls(seq=head.seq, hash=head.hash, time=time, key=key, signature=signature)

    def is_of(self, run_id: str) -> bool:
        """Says whether the signature is that of its key for this head of this run."""
        return is_signed(self.key, _message(run_id, self.seq, self.hash, self.time), self.signature)


def _message(run_id: str, seq: int, head: str, time: float) -> bytes:
    return f"{PURPOSE}\n{canonical_json([run_id, seq, head, time])}".encode()


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


def add_signature(folder: Path, signature: HeadSignature) -> None:
    """Adds a signature to the file.

    Raises:
        InfrastructureError: The file cannot be written.
    """
    try:
        with (folder / FILE).open("a+b", buffering=0) as file:
            file.seek(0)
            file.truncate(file.read(MAX_BYTES).rfind(b"\n") + 1)  # a process that was killed may have left half a line
            file.write(signature.model_dump_json().encode() + b"\n")
    except OSError as error:
        raise machine_failure(f"write {folder / FILE}", error) from error
