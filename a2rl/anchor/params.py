"""The section `anchor` of params.yaml: who signs the heads of ledgers, whom readers trust, and where heads go."""

from pydantic import BaseModel, ConfigDict, Field


class AnchorParams(BaseModel):
    """The anchor of all runs of a checkout. Relative paths begin at the checkout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    signer: str = ""
    """The Unix socket of `a2rl signer`; empty: no daemon signs."""
    key: str = ""
    """Instead: a key file that the pipeline's user holds. That user can then sign forgeries; for development."""
    public_keys: tuple[str, ...] = ()
    """Files with the public keys that `a2rl verify` trusts. If there is one, it demands signatures of every run."""
    publish_command: str = ""
    """A shell command that gets each published head as a line of JSON on its standard input."""
    publish_git: str = ""
    """The URL of a git repository that gets each published head as a commit."""
    publish_timestamp: str = ""
    """The URL of an RFC 3161 time-stamp service that signs each published head."""
    publish_every_s: float = Field(default=60.0, gt=0)
    """The shortest time between two published heads of a run; the last one is always published."""
    publish_timeout_s: float = Field(default=20.0, gt=0)
    """How long one attempt to publish may take."""

    @property
    def is_used(self) -> bool:
        """Whether heads are signed or published."""
        places = (self.publish_command, self.publish_git, self.publish_timestamp)
        return any((self.signer, self.key, *places))
