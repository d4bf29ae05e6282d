"""How this machine reaches others: its proxy and its certificates."""

from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
import requests

from a2rl.core.errors import UsageError
from a2rl.core.processes import child_environment
from a2rl.core.settings import WAY_OUT, Settings
from a2rl.core.urls import require_certificates
from tests.http_server import serving

DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAY_OUT:
        monkeypatch.setenv(name, "")  # so that it is put back at the end
        monkeypatch.delenv(name)


@pytest.fixture
def url() -> Iterator[str]:
    with serving(SimpleHTTPRequestHandler) as url:
        yield url


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_this_machine_is_reached_without_the_users_proxy(
    monkeypatch: pytest.MonkeyPatch, repository: Path, url: str, name: str
) -> None:
    monkeypatch.setenv(name, DEAD)
    Settings.load(repository)
    assert httpx.get(url).status_code == 200
    assert requests.get(url, timeout=10).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get("http://example.test")


def test_what_the_user_excepts_from_the_proxy_stays_excepted(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.setenv("https_proxy", DEAD)
    monkeypatch.setenv("NO_PROXY", "a.example, localhost")
    for _ in range(2):
        environ = Settings.load(repository).environ
        assert environ["NO_PROXY"] == environ["no_proxy"] == "a.example,localhost,127.0.0.1,::1"


def test_children_get_the_proxy_and_the_certificates(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.setenv("HTTPS_PROXY", DEAD)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/company.pem")
    child = child_environment(Settings.load(repository))
    assert (child["HTTPS_PROXY"], "127.0.0.1" in child["no_proxy"]) == (DEAD, True)
    assert child["SSL_CERT_FILE"] == child["REQUESTS_CA_BUNDLE"] == "/etc/company.pem"


@pytest.mark.parametrize("name", ["empty.pem", "missing.pem"])
def test_a_file_without_certificates_is_named_with_a_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(UsageError, match=f"{name}, which has no certificates .*: correct or unset it"):
        require_certificates({"SSL_CERT_FILE": str(tmp_path / name)})
    assert require_certificates({}) == ""
