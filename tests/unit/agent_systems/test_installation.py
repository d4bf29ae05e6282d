"""Tests the installation of agent systems: pinned, isolated, and only once. npm is a fake that writes a program."""

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.agent_systems.definition import Agent, Install, find_agent
from a2rl.agent_systems.installation import Installation, training_python
from a2rl.config.params import load_params
from a2rl.config.plan import choose_suite, plan_runs
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.settings import Settings

NEWER = f"3.{sys.version_info.minor + 1}"
NPM = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
env >> "$(dirname "$0")/environment"
[ -e "$(dirname "$0")/broken" ] && { echo "npm error 404 no such version" >&2; exit 1; }
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/.bin"
printf '#!/bin/sh\\necho tool 1.2.3 from "$HOME"\\n' > "$2/node_modules/.bin/tool"
chmod +x "$2/node_modules/.bin/tool"
"""


@pytest.fixture
def npm(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "npm").write_text(NPM)
    (folder / "npm").chmod(stat.S_IRWXU)
    return folder


@pytest.fixture
def installation(settings: Settings, npm: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Installation]:
    path = f"{npm}:{settings.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    here = Settings(settings.root, {**settings.environ, "PATH": path})

    def of(pin: str = "tool@1.2.3", **fields: object) -> Installation:
        values = {"id": "a", "title": "A", "start": ("{program}",), "program": "tool", "install": Install(npm=(pin,))}
        return Installation(Agent(**{**values, **fields}), here)  # type: ignore[arg-type]

    return of


def test_a_program_is_installed_at_its_version_in_the_checkout(
    installation: Callable[..., Installation], settings: Settings
) -> None:
    tool = installation()
    assert tool.version is None
    tool.install(lambda _: None)
    assert tool.version == "1.2.3"
    assert tool.program == settings.root / ".agents/a/node_modules/.bin/tool"
    assert tool.program.exists()
    assert tool.missing(None) == []


def test_a_planned_run_says_which_version_of_its_program_it_has(settings: Settings) -> None:
    def versions() -> dict[str, str]:
        params = load_params(settings.root)
        [spec] = plan_runs(
            choose_suite(params, "smoke", tasks=("gsm8k",), agents=("codex",)), "smoke", params, settings
        )
        return spec.versions

    assert "codex" not in versions()
    install = find_agent("codex", settings.root).install
    assert install
    mark = settings.root / ".agents/codex/installed.json"
    executable(mark.parent / "node_modules/.bin/codex", "exit 1")
    mark.write_text(json.dumps({"pins": install.pins, "version": "1.2.3"}))
    assert versions()["codex"] == "1.2.3"


def test_a_second_time_does_nothing(installation: Callable[..., Installation], npm: Path) -> None:
    said: list[str] = []
    installation().install(said.append)
    installation().install(said.append)
    assert len((npm / "calls").read_text().splitlines()) == 1
    assert said[-1] == "a 1.2.3 is installed"


@pytest.mark.parametrize("shebang", ["#!/bin/sh\nexit 1", "#!/no/such/python"])
def test_a_program_that_does_not_start_is_installed_again(
    installation: Callable[..., Installation], shebang: str
) -> None:
    tool, said = installation(), list[str]()
    tool.install(said.append)
    assert tool.program is not None
    tool.program.write_text(f"{shebang}\n")
    tool.install(said.append)
    assert said == ["installing tool@1.2.3", "a 1.2.3 is installed"] * 2
    assert "1.2.3" in tool.program.read_text()


def test_a_program_that_is_gone_is_missing(installation: Callable[..., Installation]) -> None:
    tool = installation()
    tool.install(lambda _: None)
    assert tool.program is not None
    tool.program.unlink()
    assert tool.missing_program() == "A is not installed: `a2rl agents install a`"


def test_a_changed_lock_file_is_not_installed_until_it_is(tmp_path: Path) -> None:
    python = executable(tmp_path / ".agents/a/bin/python", "true")
    lock = tmp_path / "requirements.lock"
    lock.write_text("y==1\n")
    install = Install(pip=("x==1",), lock=lock.name)
    agent = Agent(id="a", title="A", start=("{program}",), program="python", install=install, folder=tmp_path)
    locked = Installation(agent, Settings(tmp_path, {}))
    (python.parents[1] / "installed.json").write_text(json.dumps({"pins": locked._pins, "version": "1"}))
    assert locked.version == "1"
    lock.write_text("y==2\n")
    assert locked.version is None


def test_another_pin_is_not_installed_until_it_is(installation: Callable[..., Installation], npm: Path) -> None:
    installation().install(lambda _: None)
    newer = installation("tool@2.0.0")
    assert newer.version is None
    newer.install(lambda _: None)
    assert "tool@2.0.0" in (npm / "calls").read_text().splitlines()[-1]


def test_a_registry_that_fails_leaves_nothing_half_installed(
    installation: Callable[..., Installation], npm: Path
) -> None:
    (npm / "broken").touch()
    with pytest.raises(InfrastructureError, match="404 no such version"):
        installation().install(lambda _: None)
    assert installation().version is None
    assert installation().missing(None) == ["A is not installed: `a2rl agents install a`"]


def test_a_package_without_its_program_is_a_failure(installation: Callable[..., Installation]) -> None:
    with pytest.raises(InfrastructureError, match="brought no program 'other'"):
        installation(program="other").install(lambda _: None)


def test_a_missing_key_is_named_but_ones_own_llm_needs_none(
    installation: Callable[..., Installation],
) -> None:
    tool = installation(needs_one_of=("ONE_KEY", "OTHER_KEY"))
    tool.install(lambda _: None)
    assert tool.missing(None) == ["no API key: set ONE_KEY or OTHER_KEY"]
    assert tool.missing("http://127.0.0.1:8000") == []


def test_a_key_with_a_strange_character_is_named(installation: Callable[..., Installation], settings: Settings) -> None:
    agent = installation(needs_one_of=("ONE_KEY",)).agent
    here = Settings(settings.root, {**settings.environ, "ONE_KEY": "sk-abc\u2026def"})
    assert "the key in ONE_KEY has a character that no key has: copy it again" in Installation(agent, here).missing(
        None
    )


def test_an_empty_key_is_missing(installation: Callable[..., Installation], settings: Settings) -> None:
    agent = installation(needs_one_of=("ONE_KEY",)).agent
    here = Settings(settings.root, {**settings.environ, "ONE_KEY": ""})
    assert Installation(agent, here).missing_key(None) == "no API key: set ONE_KEY"


def test_what_comes_with_a2rl_needs_no_installation(installation: Callable[..., Installation]) -> None:
    built_in = installation(install=None, program=None)
    assert built_in.missing(None) == []
    said: list[str] = []
    built_in.install(said.append)
    assert said == ["a needs no installation"]


SECRETS = (
    "ANTHROPIC_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "apikey", "A2RL_CLAIMS", "PREFECT_API_AUTH_STRING",
    "PGPASSWORD", "DB_PASS", "GITHUB_PAT", "npm_config_token",
)  # fmt: skip


def test_packages_get_no_key_but_the_way_to_their_index(
    installation: Callable[..., Installation], settings: Settings, npm: Path
) -> None:
    secret = dict.fromkeys(SECRETS, "hidden")
    kept = {"HTTPS_PROXY": "http://proxy:1", "npm_config_registry": "http://mirror", "PIP_INDEX_URL": "http://mirror"}
    path = f"{npm}:{settings.environ['PATH']}"
    Installation(
        installation().agent, Settings(settings.root, {**settings.environ, **secret, **kept, "PATH": path})
    ).install(lambda _: None)
    told = (npm / "environment").read_text().splitlines()
    assert "hidden" not in str(told)
    assert {f"{name}={value}" for name, value in kept.items()} <= set(told)


def test_the_python_of_agents_is_asked_without_any_secret(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "hidden")
    python = executable(tmp_path / "bin" / "python", f"env > {tmp_path}/seen; echo '[\"3.11\", [], {{}}, []]'")
    assert training_python(str(python), settings).version == "3.11"
    assert "hidden" not in (tmp_path / "seen").read_text()


def wanting_python(python: str | None, root: Path, path: Path) -> Installation:
    agent = Agent(
        id="newest",
        title="Newest",
        start=("{program}",),
        program="python",
        install=Install(pip=("x==1",), python=python),
    )
    return Installation(agent, Settings(root=root, environ={"PATH": str(path)}))


def executable(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_is_too_old_is_reported_before_installing(tmp_path: Path) -> None:
    wanting = wanting_python(NEWER, tmp_path, tmp_path / "bin")
    assert f"Python {NEWER} or newer" in wanting.missing(None)[0]
    with pytest.raises(UsageError, match=f"Python {NEWER} or newer"):
        wanting.install(lambda text: None)


@pytest.mark.parametrize("version", [NEWER, f"3.{sys.version_info.minor + 2}"])
def test_a_newer_python_is_found_on_path_and_may_be_read(tmp_path: Path, version: str) -> None:
    python = executable(tmp_path / "bin" / f"python{version}", "exit 1")
    found = wanting_python(NEWER, tmp_path, tmp_path / "bin")
    assert "Python" not in found.missing(None)[0]
    (found.folder / "bin").mkdir(parents=True)
    (found.folder / "bin/python").symlink_to(python)
    assert found.extra_read == (found.folder, tmp_path)


def test_a_shim_of_pyenv_is_told_its_version(tmp_path: Path) -> None:
    made = 'mkdir "$3/bin"; printf "#!/bin/sh\\n" > "$3/bin/python"; chmod +x "$3/bin/python"'
    executable(tmp_path / "bin" / f"python{NEWER}", f'[ "$PYENV_VERSION" = {NEWER} ] || exit 127\n{made}')
    wanting = wanting_python(NEWER, tmp_path, Path(f"{tmp_path}/bin:/usr/bin:/bin"))
    wanting.install(lambda _: None)
    assert wanting.version == "1"


def test_without_a_wish_the_python_of_a2rl_will_do(tmp_path: Path) -> None:
    assert "Python" not in wanting_python(None, tmp_path, tmp_path / "bin").missing(None)[0]
