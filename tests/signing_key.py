"""Makes keys that sign ledgers, as `openssl genpkey -algorithm ed25519` does, and has a checkout use them."""

from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from a2rl.anchor.signatures import SigningKey
from a2rl.core.settings import Settings


def make_key(path: Path) -> SigningKey:
    """Makes a private key that only its owner can read, and its public part."""
    key = Ed25519PrivateKey.generate()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    public_path(path).write_bytes(public)
    return SigningKey.load(path)


def public_path(private: Path) -> Path:
    """Returns where the public part of a key is."""
    return private.with_name(private.name + ".pub")


def use_anchor(settings: Settings, **section: Any) -> None:
    """Gives the checkout a params.yaml of its own with this section `anchor`."""
    path = settings.root / "params.yaml"
    params = yaml.safe_load(path.read_text(encoding="utf-8")) | {"anchor": section}
    path.unlink()  # a link to this repository's
    path.write_text(yaml.safe_dump(params), encoding="utf-8")
