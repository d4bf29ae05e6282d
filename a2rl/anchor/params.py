"""The section `anchor` of params.yaml: who signs the heads of ledgers, whom readers trust, and who stamps the time."""

from a2rl.core.files import StrictModel


class AnchorParams(StrictModel):
    """The anchor of all runs of a checkout. Relative paths begin at the checkout."""

    key: str = ""
    """The file of the private key that signs heads; empty: they are not signed."""
    public_keys: tuple[str, ...] = ()
    """Files with the public keys that `a2rl verify` trusts. If there is one, it demands signatures of every run."""
    publish_timestamp: str = ""
    """The URL of an RFC 3161 time-stamp service that signs each published head."""
