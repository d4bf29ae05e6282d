"""Ed25519 keys in PEM files: the signer's private key, and the public keys that readers trust.

A key is named by its public part, 64 hexadecimal digits, so a signature says which key it needs.
"""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from a2rl.core.errors import UsageError

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


def is_signed(key_id: str, message: bytes, signature: str) -> bool:
    """Says whether a signature (hexadecimal) of a message is that of a key."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key_id)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


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
