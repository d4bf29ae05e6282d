"""Signs heads of ledgers: `LocalSigner` with a key file, `RemoteSigner` by asking the daemon of `a2rl signer`."""

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from a2rl.anchor.history import SignedHistory
from a2rl.anchor.keys import SigningKey
from a2rl.anchor.signature import Head, HeadSignature
from a2rl.core.errors import InfrastructureError, IntegrityError
from a2rl.core.files import validation_message
from a2rl.run.ledger import Row

TIMEOUT_S = 10.0
MAX_REQUEST_BYTES = 32 << 20
MAX_REPLY_BYTES = 1 << 16


class Signer(Protocol):
    """Signs the heads of runs, each of which continues the one before."""

    def head(self, run_id: str) -> Head:
        """Returns the last signed head of a run; `EMPTY` if there is none."""
        ...

    def sign(self, run_id: str, rows: Sequence[Row]) -> HeadSignature:
        """Signs the head after these entries, which follow those that were signed before; none repeats a signature.

        Raises:
            IntegrityError: They do not follow.
            InfrastructureError: The signer cannot be used.
        """
        ...


class LocalSigner:
    """Signs with a key in a file. The history is beside the key: `<key>.history.db`."""

    def __init__(self, key: Path) -> None:
        self._key = SigningKey.load(key)
        self._history = SignedHistory(key.with_name(key.name + ".history.db"))

    @property
    def key_id(self) -> str:
        """The public key, in hexadecimal digits."""
        return self._key.id

    def head(self, run_id: str) -> Head:
        """See `Signer`."""
        return self._history.head(run_id)

    def sign(self, run_id: str, rows: Sequence[Row]) -> HeadSignature:
        """See `Signer`. The head is remembered before the signature exists."""
        head = self._history.extend(run_id, rows)
        return HeadSignature.make(run_id, head, round(time.time(), 3), self._key.id, self._key.sign)


class Request(BaseModel):
    """What a client asks the daemon: one line of JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(min_length=1, max_length=200)
    rows: tuple[Row, ...] | None = None
    """Entries to sign; None asks for the last signed head."""


class Reply(BaseModel):
    """What the daemon answers: one line of JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    head: Head | None = None
    signature: HeadSignature | None = None
    refused: str = ""
    """Why nothing was signed."""
    failed: str = ""
    """What the signer could not do now."""


class RemoteSigner:
    """Asks a daemon over its Unix socket. Every request is a connection of its own, with a timeout."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.path = path
        self._timeout_s = timeout_s

    def head(self, run_id: str) -> Head:
        """See `Signer`."""
        if (head := self._ask(Request(run=run_id)).head) is None:
            raise InfrastructureError(f"the signer at {self.path} does not say what it signed")
        return head

    def sign(self, run_id: str, rows: Sequence[Row]) -> HeadSignature:
        """See `Signer`."""
        if (signature := self._ask(Request(run=run_id, rows=tuple(rows))).signature) is None:
            raise InfrastructureError(f"the signer at {self.path} answered without a signature")
        return signature

    def _ask(self, request: Request) -> Reply:
        try:
            line = self._exchange(request.model_dump_json().encode() + b"\n")
            reply = Reply.model_validate_json(line)
        except OSError as error:
            raise InfrastructureError(
                f"the signer at {self.path} does not answer: {error.strerror or error}; start `a2rl signer`"
            ) from error
        except ValidationError as error:
            raise InfrastructureError(
                f"what listens at {self.path} is no signer: {validation_message(error)}"
            ) from error
        if reply.refused:
            raise IntegrityError(f"the signer refused: {reply.refused}")
        if reply.failed:
            raise InfrastructureError(f"the signer failed: {reply.failed}")
        return reply

    def _exchange(self, line: bytes) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout_s)
            connection.connect(str(self.path))
            connection.sendall(line)
            reply = b""
            while not reply.endswith(b"\n") and len(reply) < MAX_REPLY_BYTES:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                if not (block := connection.recv(4096)):
                    break
                reply += block
            return reply


def answer(line: bytes, signer: Signer) -> Reply:
    """Answers one request; any line is answered, and none raises."""
    try:
        request = Request.model_validate(json.loads(line))
    except (ValueError, RecursionError):
        return Reply(failed="this is not a request of a2rl")
    try:
        if request.rows is None:
            return Reply(head=signer.head(request.run))
        return Reply(signature=signer.sign(request.run, request.rows))
    except IntegrityError as error:
        return Reply(refused=str(error))
    except InfrastructureError as error:
        return Reply(failed=str(error))
