"""What `a2rl doctor` says about this machine."""

import venv

import pytest

from a2rl.cli.doctor import Diagnosis, examine
from a2rl.cli.machine import doctor
from a2rl.core.settings import WAY_OUT, Settings


def test_doctor_shows_which_way_each_request_goes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAY_OUT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://name:word@proxy.example:3128")
    monkeypatch.setenv("no_proxy", "pypi.org")
    settings.environ["SSL_CERT_FILE"] = "/no/such/file.pem"
    [found] = [each for each in examine(settings) if each.what == "network"]
    assert "hub: through proxy.example; package index: directly; this machine: directly" in found.found
    assert (found.ok, "word" in found.found) == (False, False)


def test_doctor_names_what_agents_do_without(settings: Settings) -> None:
    environment = settings.root / ".venv-agent"
    venv.create(environment, with_pip=False)
    (environment / "left-out.txt").write_text("flash-attn: there is no compiler for CUDA (nvcc) here\n")
    (environment / ".installed").touch()
    [found] = [each for each in examine(settings) if each.what == "agent python"]
    assert "without flash-attn: there is no compiler for CUDA (nvcc) here" in found.found
    assert "remove .venv-agent" in found.mend


@pytest.mark.parametrize("as_json", [False, True])
def test_a_problem_is_an_exit_status(settings: Settings, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    monkeypatch.setattr(Settings, "load", lambda: settings)
    monkeypatch.setattr("a2rl.cli.doctor.examine", lambda _: [Diagnosis("git", False, False, "not found")])
    with pytest.raises(SystemExit, match="1"):
        doctor(as_json=as_json)
