"""Tests the agent's workspace and environment: everything that the reference promises, and nothing of the host."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from a2rl.agent_systems.definition import Agent
from a2rl.core.errors import A2rlError, InfrastructureError, SpoiledWorkspaceError
from a2rl.core.settings import Settings
from a2rl.execution.command import confinement_of
from a2rl.execution.workspace import agent_environment, build_workspace, write_into_workspace
from a2rl.grading.answers import RUN_META, run_meta
from a2rl.linux.untrusted_folder import UntrustedFolder
from a2rl.recording import tracer
from a2rl.run.directory import RunDir
from a2rl.run.rules import MAX_WAITING
from a2rl.sandbox.isolation import Isolation
from tests.as_nobody import as_nobody, folder_of_nobody
from tests.run_maker import spec

# rdagent/scenarios/rl/autorl_bench/core/instructions.md and the start scripts of its agents
REFERENCE_VARIABLES = {
    "TASK", "BASE_MODEL", "WORKSPACE", "MODEL_PATH", "DATA_PATH", "OUTPUT_DIR", "GRADING_SERVER_URL",
}  # fmt: skip
REFERENCE_FILES = {"description.md", "instructions.md", "code", "output", "data", "models"}
URL = "http://127.0.0.1:4242"


@pytest.fixture
def agent_run(settings: Settings, base_model: Path, tmp_path: Path) -> RunDir:
    """A run with a workspace."""
    visible = tmp_path / "visible"
    visible.mkdir()
    (visible / "train.jsonl").write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    (tmp_path / "description.md").write_text("Do sums.")
    run = RunDir.create(settings.runs, spec(model=str(base_model), max_submissions=5))
    run.clock.create(run.spec.budget_s, refunds=True)
    build_workspace(run, base_model, visible, tmp_path / "description.md")
    return run


@pytest.fixture
def secretive(settings: Settings) -> Settings:
    """A host with secrets in its environment."""
    secrets = {
        "OPENAI_API_KEY": "sk-openai", "HF_TOKEN": "hf-secret", "MLFLOW_TRACKING_URI": "http://user:secret@host",
        "AWS_SECRET_ACCESS_KEY": "aws-secret", "A2RL_ROOT": str(settings.root), "PYTHONPATH": "/secret/path",
        "SSH_AUTH_SOCK": "/secret/sock", "HTTPS_PROXY": "http://user:secret@proxy", "LANG": "C.UTF-8",
    }  # fmt: skip
    return replace(settings, environ={**settings.environ, **secrets})


def write_run_meta(run: RunDir) -> None:
    write_into_workspace(run.workspace, {RUN_META: '{"start_time": 1}'})


def agent(**changes: object) -> Agent:
    return Agent.model_validate({"id": "mine", "title": "mine", "start": ("true",), **changes})


def test_the_references_files_and_folders_are_there(agent_run: RunDir, base_model: Path) -> None:
    workspace = agent_run.workspace
    assert {path.name for path in workspace.iterdir() if not path.name.startswith(".")} == REFERENCE_FILES
    assert (workspace / "description.md").read_text() == "Do sums."
    assert (workspace / "data" / "train.jsonl").exists()
    copied = workspace / "models" / base_model.name
    assert (copied / "model.safetensors").read_bytes() == (base_model / "model.safetensors").read_bytes()


def test_the_references_variables_point_into_the_workspace(
    agent_run: RunDir, settings: Settings, base_model: Path
) -> None:
    environment = agent_environment(agent_run, agent(), URL, settings)
    assert environment.keys() >= REFERENCE_VARIABLES
    assert (environment["TASK"], environment["BASE_MODEL"]) == ("gsm8k", base_model.name)
    assert environment["GRADING_SERVER_URL"] == URL
    for name in ("WORKSPACE", "MODEL_PATH", "DATA_PATH", "OUTPUT_DIR", "HOME", "TMPDIR"):
        assert Path(environment[name]).is_dir()
        assert Path(environment[name]).is_relative_to(agent_run.workspace)


def test_the_code_of_a_run_that_moved_comes_whole_or_not(
    agent_run: RunDir, base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds a workspace takes it as it is, so one without the code must not be left behind."""
    (agent_run.code / ".git").mkdir(parents=True)
    (agent_run.code / "train.py").write_text("print(1)")
    shutil.rmtree(agent_run.workspace)

    def stops(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copytree", stops)
        with pytest.raises(KeyboardInterrupt):
            build_workspace(agent_run, base_model, tmp_path / "visible", tmp_path / "description.md")
    assert not agent_run.workspace.exists()
    build_workspace(agent_run, base_model, tmp_path / "visible", tmp_path / "description.md")
    assert [path.name for path in (agent_run.workspace / "code").iterdir()] == ["train.py"]


def test_what_was_given_is_placed_again_beside_a_workspace(agent_run: RunDir, base_model: Path, tmp_path: Path) -> None:
    (agent_run.workspace / "notes.txt").write_text("mine")
    shutil.rmtree(agent_run.given)
    build_workspace(agent_run, base_model, tmp_path / "visible", tmp_path / "description.md")
    assert (agent_run.given / "data" / "train.jsonl").is_file()
    assert (agent_run.workspace / "notes.txt").read_text() == "mine"


def test_the_agents_python_programs_load_the_tracer(agent_run: RunDir, settings: Settings) -> None:
    """The tracer writes into the workspace."""
    environment = agent_environment(agent_run, agent(env={"PYTHONPATH": "/mine"}), URL, settings)
    first, *others = environment["PYTHONPATH"].split(":")
    assert Path(first, "sitecustomize.py").read_bytes() == Path(tracer.__file__).read_bytes()
    assert (Path(first).parent, others) == (agent_run.given, ["/mine"])
    assert Path(environment[tracer.VARIABLE]).parent == agent_run.workspace


def test_a_runs_own_python_path_comes_after_the_tracer(settings: Settings) -> None:
    run = RunDir.create(settings.runs, spec(env="PYTHONPATH=/of/the/run"))
    (run.given / "models" / "m").mkdir(parents=True)
    environment = agent_environment(run, agent(env={"PYTHONPATH": "/mine"}), URL, settings)
    assert environment["PYTHONPATH"] == f"{run.given}/tracer:/of/the/run"


def test_without_a_sandbox_what_is_given_is_a_linked_copy(
    agent_run: RunDir,
) -> None:
    """It is for reading, beside the workspace, and is all that is linked."""
    links = {path.name: path.resolve() for path in agent_run.workspace.rglob("*") if path.is_symlink()}
    assert links == {name: agent_run.given / name for name in ("data", "models")}
    assert not agent_run.given.is_relative_to(agent_run.workspace)
    for folder in links.values():
        assert not any(path.is_symlink() for path in folder.rglob("*"))
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert files
        assert all(path.stat().st_mode & 0o777 == 0o444 for path in files)
        assert all(path.stat().st_nlink == 1 for path in files)


CONFINED = Isolation.of("landlock", ("landlock", "seccomp"))


def given_to(settings: Settings, base_model: Path, visible: Path, isolation: Isolation, **changes: str) -> RunDir:
    """Makes a run whose agent is confined."""
    visible.mkdir(exist_ok=True)
    (visible / "train.jsonl").write_text("{}")
    (visible / "deep").mkdir(exist_ok=True)
    (visible / "deep" / "more.jsonl").write_text("{}")
    run = RunDir.create(settings.runs, spec(**({"model": str(base_model)} | changes)))
    build_workspace(run, base_model, visible, visible / "train.jsonl", isolation=isolation)
    return run


def test_under_a_sandbox_model_and_data_are_the_originals(settings: Settings, base_model: Path, tmp_path: Path) -> None:
    """They take no disk space."""
    run = given_to(settings, base_model, tmp_path / "visible", CONFINED)
    for original in (*base_model.iterdir(), tmp_path / "visible" / "train.jsonl"):
        [given] = [path for path in run.given.rglob(original.name) if path.is_file()]
        assert given.samefile(original) or given.stat().st_mode & 0o777 == 0o444  # the latter where files are cloned
    assert (run.workspace / "data" / "deep" / "more.jsonl").read_text() == "{}"


def test_what_cannot_get_a_second_name_is_read_where_it_is(
    settings: Settings, base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox opens that file."""
    monkeypatch.setattr("a2rl.linux.placing.os.link", raising_exdev)
    monkeypatch.setattr("a2rl.linux.placing.clone_file", lambda *_: False)
    run = given_to(settings, base_model, tmp_path / "visible", CONFINED)
    weights = run.workspace / "models" / base_model.name / "model.safetensors"
    assert weights.resolve() == (base_model / "model.safetensors").resolve()
    confinement = confinement_of(run, agent(), settings, CONFINED, ())
    assert confinement is not None
    assert {str(path.resolve()) for path in base_model.iterdir()} <= set(confinement.read)


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_another_user_gets_a_copy_of_what_it_could_not_read(
    settings: Settings, base_model: Path, tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(base_model, tmp_path / "private" / "model")
    if closed == "file":
        (own / "model.safetensors").chmod(0o600)
    else:
        own.chmod(0o700)
        monkeypatch.setattr("a2rl.linux.placing.os.link", raising_exdev)
    user = Isolation.of("landlock", ("landlock", "seccomp", "user"))
    run = given_to(settings, own, tmp_path / "visible", user, model=str(own))
    weights = run.given / "models" / own.name / "model.safetensors"
    assert not weights.is_symlink()
    assert weights.stat().st_mode & 0o004
    assert weights.read_bytes() == (own / "model.safetensors").read_bytes()


@pytest.mark.parametrize("mask", [0o027, 0o077])
def test_another_user_may_read_what_it_is_given_under_any_umask(
    settings: Settings, base_model: Path, tmp_path: Path, mask: int
) -> None:
    user = Isolation.of("landlock", ("landlock", "seccomp", "user"))
    before = os.umask(mask)
    try:
        run = given_to(settings, base_model, tmp_path / "visible", user)
    finally:
        os.umask(before)
    closed = [
        str(path)
        for path in (run.given, *run.given.rglob("*"))
        if not path.stat().st_mode & 0o004 or (path.is_dir() and not path.stat().st_mode & 0o001)
    ]
    assert closed == []


def raising_exdev(*_: object) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


def test_a_model_of_the_hub_keeps_its_organisation(settings: Settings, base_model: Path, tmp_path: Path) -> None:
    """The reference has it as well."""
    run = given_to(settings, base_model, tmp_path / "visible", CONFINED, model="Qwen/Qwen2.5-0.5B@main")
    environment = agent_environment(run, agent(), URL, settings)
    assert environment["BASE_MODEL"] == "Qwen/Qwen2.5-0.5B"
    assert environment["MODEL_PATH"] == str(run.workspace / "models" / "Qwen/Qwen2.5-0.5B")
    assert (Path(environment["MODEL_PATH"]) / "config.json").exists()
    assert "./models/Qwen/Qwen2.5-0.5B" in (run.workspace / "instructions.md").read_text()


def test_only_requested_variables_of_the_host_reach_the_agent(agent_run: RunDir, secretive: Settings) -> None:
    plain = agent_environment(agent_run, agent(), URL, secretive)
    assert not any("secret" in value or "sk-" in value for value in plain.values())
    assert "A2RL_ROOT" not in plain
    asked = agent_environment(agent_run, agent(forward_env=("OPENAI_API_KEY", "NOT_SET")), URL, secretive)
    assert asked.keys() - plain.keys() == {"OPENAI_API_KEY"}
    assert asked["OPENAI_API_KEY"] == "sk-openai"


def test_variables_outside_the_settings_reach_no_agent(
    agent_run: RunDir, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE_SECRET", "late")
    asking = agent(forward_env=("LATE_SECRET",))
    assert "LATE_SECRET" not in agent_environment(agent_run, asking, URL, settings)


def test_an_agent_cannot_replace_the_variables_of_the_benchmark(agent_run: RunDir, settings: Settings) -> None:
    own = {"GRADING_SERVER_URL": "http://evil", "WORKSPACE": "/", "MINE": "1"}
    environment = agent_environment(agent_run, agent(env=own), URL, settings)
    assert environment["GRADING_SERVER_URL"] == URL
    assert environment["WORKSPACE"] == str(agent_run.workspace)
    assert environment["MINE"] == "1"


def test_nobody_is_told_the_split_seed_or_the_graders_folders(agent_run: RunDir, settings: Settings) -> None:
    write_into_workspace(agent_run.workspace, {RUN_META: run_meta(agent_run, {})})
    environment = agent_environment(agent_run, agent(), URL, settings)
    files = [path for path in agent_run.workspace.rglob("*") if path.suffix in {".md", ".json", ".jsonl"}]
    told = "\n".join([*(path.read_text() for path in files), *environment.values()])
    assert "split_seed" not in told
    assert "/hidden" not in told


def test_the_instructions_say_mode_budget_and_quota(agent_run: RunDir) -> None:
    text = (agent_run.workspace / "instructions.md").read_text()
    assert "Mode: free" in text
    assert "**10m**" in text
    assert "At most 5 submissions and 10m of grading time" in text
    assert f"At most {MAX_WAITING} submissions are copied and graded at a time" in text
    assert "{{" not in text


def test_an_existing_workspace_is_left_as_the_agent_has_it(agent_run: RunDir, base_model: Path, tmp_path: Path) -> None:
    (agent_run.workspace / "code" / "train.py").write_text("mine")
    build_workspace(agent_run, base_model, tmp_path / "visible", tmp_path / "description.md")
    assert (agent_run.workspace / "code" / "train.py").read_text() == "mine"


def test_run_meta_has_the_references_keys(agent_run: RunDir) -> None:
    """It has the settings that the agent may know."""
    for _ in range(2):
        write_into_workspace(agent_run.workspace, {RUN_META: run_meta(agent_run, {})})
    told = json.loads((agent_run.workspace / RUN_META).read_text())
    assert told.keys() >= {"start_time", "timeout_s", "last_submit_time", "end_time"}
    assert (told["timeout_s"], told["last_submit_time"], told["seed"]) == (600, None, 0)
    assert (told["memory_gib"] > 0, told["grader_gib"]) == (True, None)
    assert json.loads(run_meta(agent_run, {"A2RL_AGENT_MEMORY_GIB": "6"}))["memory_gib"] == 6
    assert told["end_time"] - told["start_time"] == 600
    assert not list(agent_run.workspace.glob(".run_meta*"))


def test_a_link_planted_at_run_meta_is_replaced_and_not_followed(agent_run: RunDir, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (agent_run.workspace / "run_meta.json").symlink_to(victim)
    write_run_meta(agent_run)
    assert victim.read_text() == "precious"
    assert not (agent_run.workspace / "run_meta.json").is_symlink()


def test_a_folder_planted_at_run_meta_does_not_stop_the_run(agent_run: RunDir) -> None:
    (agent_run.workspace / "run_meta.json").mkdir()
    (agent_run.workspace / "run_meta.json" / "x").write_text("x")
    try:
        write_run_meta(agent_run)
    except A2rlError as error:
        pytest.fail(f"an agent can keep its own run from being resumed: {error}")
    assert not list(agent_run.workspace.glob(".run_meta*"))


def home_is_a_link(workspace: Path, outside: Path) -> None:
    (workspace / ".home").rmdir()
    (workspace / ".home").symlink_to(outside)


def folder_is_a_link(workspace: Path, outside: Path) -> None:
    (workspace / ".home/.codex").symlink_to(outside)


def file_is_a_link(workspace: Path, outside: Path) -> None:
    (workspace / ".home/.codex").mkdir()
    (workspace / ".home/.codex/config.toml").symlink_to(outside / "config.toml")


def file_is_a_hard_link(workspace: Path, outside: Path) -> None:
    (workspace / ".home/.codex").mkdir()
    (workspace / ".home/.codex/config.toml").hardlink_to(outside / "config.toml")


def home_is_a_file(workspace: Path, outside: Path) -> None:
    (workspace / ".home").rmdir()
    (workspace / ".home").touch()


def file_is_a_full_folder(workspace: Path, outside: Path) -> None:
    (workspace / ".home/.codex/config.toml/below").mkdir(parents=True)


PLANTED = [home_is_a_link, folder_is_a_link, file_is_a_link, file_is_a_hard_link, home_is_a_file, file_is_a_full_folder]


@pytest.mark.parametrize("plant", PLANTED)
def test_settings_of_an_agent_system_land_only_in_its_home(
    agent_run: RunDir, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    outside = tmp_path / "operators-codex"
    outside.mkdir()
    (outside / "config.toml").write_text("precious")
    plant(agent_run.workspace, outside)
    write_into_workspace(agent_run.workspace, {".home/.codex/config.toml": "ours", ".home/.profile": "ours"})
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"config.toml": "precious"}
    home = agent_run.workspace / ".home"
    assert (home / ".codex/config.toml").read_text() == (home / ".profile").read_text() == "ours"
    assert not home.is_symlink()


def test_a_locked_workspace_is_unlocked_as_an_ordinary_user() -> None:
    def work() -> None:
        run = RunDir(root / "run")
        (run.workspace / ".home/.tool").mkdir(parents=True)
        for name in (".home/.tool", ".home", "."):
            (run.workspace / name).chmod(0)
        write_run_meta(run)
        write_into_workspace(run.workspace, {".home/.tool/settings": "ours"})
        assert (run.workspace / ".home/.tool/settings").read_text() == "ours"

    with folder_of_nobody() as root:
        as_nobody(work)


def test_faults_of_the_agent_and_of_the_machine_are_told_apart(
    agent_run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, blamed in ((errno.EPERM, SpoiledWorkspaceError), (errno.ENOSPC, InfrastructureError)):

        def fail(*_: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(UntrustedFolder, "write", fail)
        with pytest.raises(blamed):
            write_run_meta(agent_run)
    (agent_run.workspace).rename(agent_run.root / "away")
    (agent_run.workspace).symlink_to("away")
    with pytest.raises(SpoiledWorkspaceError, match="cannot be started there again"):
        write_run_meta(agent_run)


def test_the_checkouts_python_comes_first_on_the_agents_path(agent_run: RunDir, settings: Settings) -> None:
    path = agent_environment(agent_run, agent(), URL, settings)["PATH"].split(os.pathsep)
    assert path[0] == str(settings.python_bin)


@pytest.mark.parametrize("mode", ["free", "sft-only", "rl-only"])
def test_every_mode_has_its_rule(settings: Settings, base_model: Path, tmp_path: Path, mode: str) -> None:
    run = RunDir.create(settings.runs, spec(mode=mode, run_id=f"r-{mode}"))
    (tmp_path / "visible").mkdir()
    (tmp_path / "description.md").write_text("Do sums.")
    build_workspace(run, base_model, tmp_path / "visible", tmp_path / "description.md")
    assert f"Mode: {mode}" in (run.workspace / "instructions.md").read_text()


def test_an_agents_folder_is_readable_unless_it_holds_a_checkout(
    agent_run: RunDir, settings: Settings, tmp_path: Path
) -> None:
    """The same holds for a home directory."""

    def readable(folder: Path) -> set[str]:
        start = ("bash", str(folder / "start.sh"))
        found = confinement_of(agent_run, agent(start=start, folder=folder), settings, landlock, connect=(1,))
        assert found is not None
        return set(found.read)

    landlock = Isolation(kind="landlock", layers=("landlock", "scopes", "seccomp", "broker"))
    (own := tmp_path / "own").mkdir()
    for folder in (own, settings.root, settings.root.parent):
        (folder / "start.sh").write_text("true")
    assert str(own) in readable(own)
    for folder in (settings.root, settings.root.parent):
        assert str(folder) not in readable(folder)
        assert str(folder / "start.sh") in readable(folder)


@pytest.mark.parametrize(("merges", "says"), [(True, "merged by the grader"), (False, "Merge LoRA adapters first")])
def test_the_instructions_say_whether_adapters_are_merged(
    settings: Settings, base_model: Path, tmp_path: Path, merges: bool, says: str
) -> None:
    (tmp_path / "visible").mkdir()
    (tmp_path / "description.md").write_text("Do sums.")
    run = RunDir.create(settings.runs, spec(model=str(base_model), merge_adapters=merges))
    build_workspace(run, base_model, tmp_path / "visible", tmp_path / "description.md")
    assert says in (run.workspace / "instructions.md").read_text()


def test_the_instructions_name_options_that_are_not_the_usual(
    settings: Settings, base_model: Path, tmp_path: Path
) -> None:
    """The agent trains for what the grader reads."""
    (tmp_path / "visible").mkdir()
    (tmp_path / "description.md").write_text("Search.")
    options = {"prompts": "faithful", "turns": "repaired", "search": "pages"}
    run = RunDir.create(settings.runs, spec(task="deepsearchqa", model=str(base_model), options=options))
    build_workspace(run, base_model, tmp_path / "visible", tmp_path / "description.md")
    told = [line for line in (run.workspace / "instructions.md").read_text().splitlines() if "grader's option" in line]
    assert [line.partition(". ")[0] for line in told] == ["- With the grader's option `prompts: faithful`"]
    assert "an action in a thought counts" in told[0]
