"""The password in A2RL_CLAIMS, wherever it stands in the URL, is neither shown nor kept."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from a2rl.cluster.holding import Cluster
from a2rl.cluster.postgres_claims import PostgresClaims
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.secrets import scrub
from a2rl.core.settings import Settings

HIDDEN, QUOTED = "hunter2%hunter3", "hunter2%25hunter3"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://a2rl:{QUOTED}@db.example/a2rl",
        f"postgresql://db.example/a2rl?user=a2rl&password={QUOTED}",
        f"postgresql://a2rl@db.example/a2rl?sslpassword={QUOTED}",
    ],
)
def test_the_password_of_the_claims_is_not_told(url: str, settings: Settings, tmp_path: Path) -> None:
    settings.environ.update(A2RL_STORE=f"file://{tmp_path}/store", A2RL_CLAIMS=url)
    claims = Cluster.needed(settings).claims
    assert "hunter" not in scrub(f"{HIDDEN} {QUOTED}")

    class BrokenError(Exception):
        pass

    def connect(*_: object, **__: object) -> None:
        raise BrokenError("it is broken")

    assert isinstance(claims, PostgresClaims)
    claims.__dict__["_driver"] = SimpleNamespace(connect=connect, Error=BrokenError, OperationalError=ConnectionError)
    with pytest.raises(InfrastructureError, match=r"^Postgres at db\.example/a2rl failed: it is broken"):
        claims.rows()


@pytest.mark.parametrize(
    "credentials", ["pa[ss", "pa]ss", "secret#word12", "secret/word12", "secret?word12", "secret@word12"]
)
def test_a_password_that_could_end_elsewhere_is_refused(credentials: str, settings: Settings, tmp_path: Path) -> None:
    claims = f"postgresql://a2rl:{credentials}@db.example/a2rl"
    settings.environ.update(A2RL_STORE=f"file://{tmp_path}/store", A2RL_CLAIMS=claims)
    with pytest.raises(UsageError, match="write %40 for @") as refused:
        Cluster.of(settings)
    assert credentials not in str(refused.value)
