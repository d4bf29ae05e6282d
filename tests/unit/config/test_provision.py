"""Tests what an agent gets in addition: Python, folders, hosts and variables; foolish values are refused."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from a2rl.agent_systems.definition import Agent
from a2rl.config.params import load_params
from a2rl.config.plan import check_cells
from a2rl.config.provision import NO_INDEX, OFFLINE, hosts_in, provision_of, variables_in
from a2rl.core.errors import UsageError
from a2rl.core.secrets import register_secrets
from a2rl.core.settings import Settings
from a2rl.execution.command import confinement_of
from a2rl.execution.workspace import agent_environment, build_workspace
from a2rl.llm.gateway import Gateway
from a2rl.run.directory import RunDir
from a2rl.run.spec import RunSettings
from a2rl.sandbox.isolation import Isolation
from tests.run_maker import spec


def agent(**changes: Any) -> Agent:
    return Agent.model_validate({"id": "mine", "title": "mine", "start": ("true",), **changes})


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without packages."""
    folder = tmp_path_factory.mktemp("environments") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def test_without_wishes_an_agent_trains_with_our_own_python(settings: Settings) -> None:
    found = provision_of(RunSettings(), agent(), settings)
    assert found.python.executable == Path(sys.executable)
    assert {"torch", "transformers", "trl"} <= found.python.packages.keys()
    assert (found.read, found.hosts, found.env) == ((), (), {})


def test_the_agents_environment_is_chosen_over_ours(settings: Settings, environment: Path, tmp_path: Path) -> None:
    """What the agent's definition names comes before both."""
    (settings.root / ".venv-agent").symlink_to(environment)
    unfinished = provision_of(RunSettings(), agent(), settings).python
    assert unfinished.executable == Path(sys.executable)
    (environment / ".installed").touch()
    (environment / "left-out.txt").write_text("flash-attn: there is no compiler for CUDA (nvcc) here\n")
    found = provision_of(RunSettings(), agent(), settings).python
    assert found.executable == settings.root / ".venv-agent/bin/python"
    assert found.packages == {}
    assert str(found).endswith("; without flash-attn: there is no compiler for CUDA (nvcc) here")
    assert settings.root / ".venv-agent" in found.folders
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    for run, definition in (
        (RunSettings(), agent(python=str(tmp_path / "own"))),
        (RunSettings(python=str(tmp_path / "own/bin/python")), agent(python="/nowhere")),
    ):
        assert provision_of(run, definition, settings).python.executable == tmp_path / "own/bin/python"


def test_the_environment_is_first_on_the_path_and_readable(
    settings: Settings, environment: Path, base_model: Path, tmp_path: Path
) -> None:
    """The agent is told of it."""
    (tmp_path / "visible").mkdir()
    (tmp_path / "description.md").touch()
    run = RunDir.create(settings.runs, spec(python=str(environment), read=str(tmp_path / "visible")))
    definition = agent(env={"WHO": "agent"})
    provision = provision_of(run.spec, definition, settings)
    build_workspace(run, base_model, tmp_path / "visible", tmp_path / "description.md", provision)
    variables = agent_environment(run, definition, "http://127.0.0.1:1", settings)
    assert variables["PATH"].startswith(f"{environment / 'bin'}:")
    assert variables["WHO"] == "agent"
    confinement = confinement_of(run, definition, settings, Isolation(kind="landlock", layers=("landlock",)), (1,))
    assert confinement is not None
    assert {str(environment), str(tmp_path / "visible")} <= set(confinement.read)
    told = (run.workspace / "instructions.md").read_text()
    assert f"`python` is Python {sys.version_info.major}.{sys.version_info.minor}" in told
    assert f"You can also read {tmp_path / 'visible'}." in told
    assert "There is no internet" in told


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/nowhere/bin/python", "python /nowhere/bin/python: there is no such file or folder"),
        ("/nowhere", "python /nowhere: there is no such file or folder"),
        ("env/bin/python", "not an absolute path"),
        ("/etc/hostname", "part of the system"),
    ],
)
def test_a_python_that_is_none_is_refused(settings: Settings, python: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        provision_of(RunSettings(python=python), agent(), settings)


def test_a_missing_environment_is_not_replaced_in_silence(settings: Settings) -> None:
    named = replace(settings, environ={**settings.environ, "A2RL_AGENT_PYTHON": "/nowhere/bin/python"})
    with pytest.raises(UsageError, match="python /nowhere/bin/python does not start"):
        provision_of(RunSettings(), agent(), named)


def test_a_python_that_does_not_start_is_one_clear_line(settings: Settings, tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "python"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match="does not start") as caught:
        provision_of(RunSettings(python=str(broken)), agent(), settings)
    assert "\n" not in str(caught.value)


def test_a_python_that_an_agent_could_have_made_is_never_started(settings: Settings) -> None:
    planted = settings.runs / "old/workspace/env/bin/python"
    planted.parent.mkdir(parents=True)
    planted.write_text(f"#!/bin/sh\ntouch {settings.root}/started\n")
    planted.chmod(0o755)
    with pytest.raises(UsageError, match="hidden data and runs"):
        provision_of(RunSettings(python=str(planted)), agent(), settings)
    assert not (settings.root / "started").exists()


def test_variables_are_read_as_a_shell_reads_them() -> None:
    assert variables_in("A=1 B='two words' C=x=y") == {"A": "1", "B": "two words", "C": "x=y"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A", "is not a variable"),
        ("1A=2", "is not a variable"),
        ("A='x", "No closing quotation"),
        ("TASK=webshop", "set by a2rl itself"),
        ("PATH=/evil", "set by a2rl itself"),
        ("SEARCH_URL=http://x", "set by a2rl itself"),
        ("https_proxy=http://x", "set by a2rl itself"),
        ("LD_PRELOAD=/x.so", "set by a2rl itself"),
        ("OPENAI_API_KEY=abc", "forward_env"),
        ("HF_TOKEN=abc", "forward_env"),
        ("DB_PASSWORD=abc", "forward_env"),
        ("HARMLESS=registered-secret-value", "forward_env"),
        ("PIP_INDEX_URL=https://me:pw@mirror.example/simple", "user name, a password"),
        ("A='x\ny'", "cannot be printed"),
    ],
)
def test_foolish_variables_are_refused(text: str, says: str) -> None:
    register_secrets({"SOME_KEY": "registered-secret-value"})
    with pytest.raises(UsageError, match=says):
        variables_in(text)


def test_hosts_are_separated_by_commas_or_spaces() -> None:
    assert hosts_in("mirror.example:8080, files.example 10.0.0.5") == (
        "mirror.example:8080",
        "files.example",
        "10.0.0.5",
    )


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("*", "single host"), ("*.example", "single host"), ("a.example/path", "single host"),
        ("user@a.example", "single host"), ("a.example:port", "single host"), ("http://a.example", "single host"),
        ("localhost:4200", "this machine"), ("127.0.0.1", "this machine"), ("127.9.9.9:80", "this machine"),
        ("[::1]:80", "this machine"), ("[::ffff:127.0.0.1]:80", "this machine"), ("0.0.0.0", "this machine"),
        ("169.254.169.254", "this machine"), ("x.localhost", "this machine"),
    ],
)  # fmt: skip
def test_foolish_hosts_are_refused(host: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        hosts_in(host)


def test_programs_fail_at_once_unless_their_host_is_allowed(settings: Settings) -> None:
    def offline(definition: Agent, **given: str) -> dict[str, str]:
        return provision_of(RunSettings(**given), definition, settings).offline  # type: ignore[arg-type]

    assert offline(agent()) == OFFLINE | NO_INDEX
    assert offline(agent(hosts=("api.example",))) == OFFLINE | NO_INDEX
    assert offline(agent(hosts=("huggingface.co",))) == NO_INDEX
    assert offline(agent(), hosts="huggingface.co") == {}
    assert offline(agent(), hosts="mirror.example") == OFFLINE
    assert offline(agent(env={"PIP_INDEX_URL": "http://mirror.example"}, hosts=("mirror.example",))) == OFFLINE


def test_an_agent_without_an_llm_uses_a_logging_proxy(settings: Settings) -> None:
    """It reaches the hosts of the run through it."""
    import httpx

    run = RunDir.create(settings.runs, spec(hosts="mirror.invalid:80"))
    with Gateway(run, agent(), settings) as gateway:
        assert len(gateway.ports) == 1
        answers = [
            httpx.get(url, proxy=gateway.environment["HTTP_PROXY"], trust_env=False).status_code
            for url in ("http://mirror.invalid/", "http://other.invalid/")
        ]
    assert answers == [502, 403]  # there is no such host; that host is not allowed
    logged = [json.loads(line) for line in (run.logs / "proxy.jsonl").read_text().splitlines()]
    assert [(entry["host"], entry["allowed"]) for entry in logged if "allowed" in entry] == [
        ("mirror.invalid", True),
        ("other.invalid", False),
    ]


def test_wishes_that_cannot_be_met_are_refused_before_the_start(settings: Settings) -> None:
    cells = [RunSettings(agent="noop", read="/")]
    with pytest.raises(UsageError, match="read /: an agent may not read this"):
        check_cells(cells, load_params(settings.root), settings)


@pytest.mark.parametrize(
    "url", ["http://host:99999", "https://:80/v1", "http://[::1/v1", "http://x y/v1", "http://user%40h"]
)
def test_a_url_of_no_llm_is_refused_before_the_start(settings: Settings, url: str) -> None:
    cells = [RunSettings(agent="noop", base_url=url)]
    with pytest.raises(UsageError, match="is not a valid LLM URL: write for example"):
        check_cells(cells, load_params(settings.root), settings)
