"""How this machine reaches others: its proxy and its certificates."""

import re
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
import requests
from typer.testing import CliRunner

from a2rl.cli import launching
from a2rl.cli.commands import app
from a2rl.cli.doctor import examine
from a2rl.cli.flow_runner import run_flow
from a2rl.core.errors import UsageError
from a2rl.core.hub import DataSource, download, hub_errors
from a2rl.core.processes import child_environment
from a2rl.core.settings import WAY_OUT, Settings
from a2rl.core.urls import require_certificates, require_proxies
from a2rl.execution.preflight import examine_runs
from flows.submission import prefect_client
from tests.http_server import serving
from tests.run_maker import spec

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


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("url", ["socks5://u:secret@h:1", "http://", "http://h:99999", "http://[::1"])
def test_a_proxy_of_another_kind_is_named_with_a_remedy(name: str, url: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} is not the URL of an HTTP proxy.*: correct or unset it") as refused:
        require_proxies({name: url})
    assert "secret" not in str(refused.value)


def test_a_socks_proxy_is_found_before_anything_is_started(settings: Settings) -> None:
    here = Settings(settings.root, {**settings.environ, "ALL_PROXY": "socks5://h:1"})
    [network] = [each for each in examine(here) if each.what == "network"]
    [problem] = [each.problem for each in examine_runs([spec()], here, lambda check: check.what == "proxies")]
    assert (network.ok, network.mend) == (False, problem)
    with pytest.raises(UsageError, match=r"^ALL_PROXY is not"):
        run_flow([], here)


def test_whatever_asks_prefect_or_a_hub_names_a_socks_proxy(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pinned = DataSource(host="github", repo_id="a/b", revision="1", files=("f",), url="https://a.test", licence="MIT")
    for name, value in {
        "A2RL_ROOT": str(settings.root),
        "A2RL_STORE": f"file://{tmp_path}/store",
        "PREFECT_API_URL": f"{DEAD}/api",
        "ALL_PROXY": "socks5://10.0.0.1:1080",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"^ALL_PROXY is not"):
        launching._require_prefect(Settings.load())
    with pytest.raises(UsageError, match=r"^ALL_PROXY is not"), prefect_client():
        pass
    with pytest.raises(UsageError, match=r"^ALL_PROXY is not"):
        download(pinned, "f")
    with pytest.raises(UsageError, match=r"^ALL_PROXY is not"), hub_errors("a/b"):
        httpx.get("https://a.test")
    monkeypatch.delattr("os.execve")
    said = CliRunner().invoke(app, ["suite", "worker", "a-pool"])
    assert str(said.exception).startswith("ALL_PROXY is not"), said.output


def test_a_proxy_that_every_part_can_use_is_accepted() -> None:
    given = {"HTTPS_PROXY": "http://proxy:3128", "all_proxy": "proxy:3128", "NO_PROXY": "a.example,::1,10.0.0.0/8"}
    assert require_proxies(given) == "HTTPS_PROXY, all_proxy"
    assert require_proxies({}) == ""


@pytest.mark.parametrize("host", ["[::1]:80", "fd00::1/64"])
def test_an_exception_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("NO_PROXY", host)
    with pytest.raises(httpx.InvalidURL):
        httpx.Client()
    with pytest.raises(UsageError, match=re.escape(f"NO_PROXY has {host}: ")):
        require_proxies({"NO_PROXY": host})


def test_brackets_around_an_excepted_address_are_understood(
    monkeypatch: pytest.MonkeyPatch, repository: Path, url: str
) -> None:
    monkeypatch.setenv("NO_PROXY", "[::1],[fd00::1]")
    environ = Settings.load(repository).environ
    assert environ["NO_PROXY"] == "::1,fd00::1,127.0.0.1,localhost"
    assert require_proxies(environ) == ""
    assert httpx.get(url).status_code == 200


@pytest.mark.parametrize("name", ["empty.pem", "missing.pem"])
def test_a_file_without_certificates_is_named_with_a_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(UsageError, match=f"{name}, which has no certificates .*: correct or unset it"):
        require_certificates({"SSL_CERT_FILE": str(tmp_path / name)})
    assert require_certificates({}) == ""
