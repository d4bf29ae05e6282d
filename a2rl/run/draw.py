"""The draw of a suite: one secret seed that decides which items its runs are graded on, and which half is public.

Nobody knows it before the suite, and no agent can read it. Each run commits to it in the first event of its ledger, and
reveals it there when the agent's work can no longer go on. Then everybody can compute the same items and halves.

    draw = Draw.fresh()
    draw.commitment              # in the ledger at the start; says nothing about the seed
    draw.halves_seed             # decides the halves, and a sample
    draw.items_seed("gsm8k")     # decides the items of a mini variant
"""

import hmac
import json
import secrets
from hashlib import sha256
from pathlib import Path

from pydantic import Field, ValidationError

from a2rl.core.errors import UsageError
from a2rl.core.files import StrictModel, digest_of, validation_message

BYTES = 32
HEX = rf"^[0-9a-f]{{{2 * BYTES}}}$"


class Draw(StrictModel):
    """A seed and the salt of its commitment, both 32 bytes in hexadecimal digits."""

    seed: str = Field(pattern=HEX)
    salt: str = Field(pattern=HEX)
    """Keeps a commitment to a seed that somebody may guess from being recognised."""

    @classmethod
    def fresh(cls) -> "Draw":
        """Draws a seed from the operating system's random numbers."""
        return cls(seed=secrets.token_hex(BYTES), salt=secrets.token_hex(BYTES))

    @classmethod
    def read(cls, path: Path) -> "Draw":
        """Reads a file with a draw: JSON with `seed` and `salt`, or a spec.json whose run has a draw.

        Raises:
            UsageError: The file is missing, or is neither.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--seed-file {path} cannot be read ({getattr(error, 'strerror', None) or error}): {_HOW}"
            ) from error
        if isinstance(content, dict) and isinstance(content.get("draw"), dict):
            content = content["draw"]
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise UsageError(f"--seed-file {path} has no draw ({validation_message(error)}): {_HOW}") from error

    @property
    def commitment(self) -> str:
        """SHA-256 (hex) of the canonical JSON of `["a2rl draw", seed, salt]`."""
        return digest_of(["a2rl draw", self.seed, self.salt])

    @property
    def halves_seed(self) -> int:
        """The seed of the halves, and of a sample."""
        return int(self._derived("halves")[:16], 16)

    def items_seed(self, task: str) -> str:
        """Returns the seed of a task's items."""
        return self._derived(f"items of {task}")

    @property
    def name(self) -> str:
        """A name for files that are made from the draw. It says nothing about the seed."""
        return self._derived("name")[:16]

    def _derived(self, purpose: str) -> str:
        """Returns the HMAC-SHA-256 (hex) of a purpose; the seeds of different purposes say nothing about each other."""
        return hmac.new(bytes.fromhex(self.seed), purpose.encode(), sha256).hexdigest()


_HOW = 'give {"seed": "<64 hexadecimal digits>", "salt": "<the same>"}, or the spec.json of an earlier run'
