"""Tests finding tasks and agents, and the messages when there is none."""

from pathlib import Path

import pytest

from a2rl.agent_systems.definition import agent_ids, find_agent
from a2rl.core.errors import IntegrityError, TaskDefinitionError, UsageError, unknown_name
from a2rl.core.settings import Settings
from a2rl.task_api.catalog import load_task, task_ids


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one agent, `mine`."""
    write_agent(tmp_path, "mine", 'title: my agent\nstart: ["python", "{agent_dir}/agent.py"]\n')
    return tmp_path


def write_agent(root: Path, name: str, text: str) -> None:
    folder = root / "agents" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.yaml").write_text(text)


def test_adding_a_folder_is_all_it_takes(root: Path) -> None:
    assert agent_ids(root) == ["mine"]
    write_agent(root, "another", 'title: x\nstart: ["true"]\n')
    (root / "agents" / "empty").mkdir()
    assert agent_ids(root) == ["another", "mine"]
    assert find_agent("another", root).start == ("true",)


def test_an_agents_command_knows_its_folder(root: Path) -> None:
    agent = find_agent("mine", root)
    assert agent.id == "mine"
    assert agent.command() == ["python", f"{root}/agents/mine/agent.py"]


def test_a_misspelt_name_is_answered_with_the_nearest_and_all(root: Path, settings: Settings) -> None:
    with pytest.raises(UsageError, match=r"no agent 'mien'\. Did you mean 'mine'\? Known: mine"):
        find_agent("mien", root)
    with pytest.raises(UsageError, match=r"no task 'gsm8'\. Did you mean 'gsm8k'"):
        load_task("gsm8", settings.root)


def test_a_name_like_no_other_gets_no_guess(root: Path) -> None:
    with pytest.raises(UsageError, match=r"no agent 'zzzzzz'\. Known: mine$"):
        find_agent("zzzzzz", root)
    assert "Known: none" in str(unknown_name("agent", "x", []))


@pytest.mark.parametrize("name", ["..", "", ".", "mine\0", "Mine"])
def test_only_names_of_the_list_are_looked_up(root: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no agent"):
        find_agent(name, root)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("title: [", "line 1"),
        ("", ""),
        ("- a\n- b\n", "list"),
        ("title: x\n", "start"),
        ('title: x\nstart: ["true"]\nstrat: 1\n', "strat"),
        ("title: x\nstart: true\n", "start"),
        ('title: x\nstart: ["true"]\nenv: {A: [1]}\n', "env"),
        ('title: x\nstart: ["{prompt.x}"]\n', "unknown placeholder"),
        ('title: x\nstart: ["{prompt[x]}"]\n', "unknown placeholder"),
        ("title: x\nstart: [x]\ntranscript: {format: claude-cod}\n", "no transcript format 'claude-cod'"),
        ("title: x\nstart: []\n", "start"),
        ("title: 2024-13-45\n", "month must be in 1..12"),
        ('title: x\nstart: [x]\nhosts: ["https://api.example/"]\n', "hosts.0: 'https://api.example/' is not a single"),
        ("title: x\nstart: [x]\nhosts: [localhost:4200]\n", "is this machine"),
        ("title: x\nstart: [x]\nbase_url: api.example/v1\n", "base_url: 'api.example/v1' is not a valid LLM URL"),
        ("title: x\nstart: [x]\nbase_url: http://host:99999\n", "is not a valid LLM URL"),
        ("title: x\nstart: [x]\ntranscript: {format: codex, from: ~/.codex/x.jsonl}\n", "not a path below its HOME"),
        *(
            (f"title: x\nstart: [x]\nfiles: {{'{path}': x}}\n", "not a path below its HOME")
            for path in ("/etc/x", "../../x", "a/../b", "", ".", "~/.codex/config.toml", "./~/x", "$HOME/x")
        ),
    ],
)
def test_a_bad_agent_yaml_is_its_authors_to_mend(root: Path, text: str, says: str) -> None:
    write_agent(root, "bad", text)
    with pytest.raises(TaskDefinitionError, match=r"^agents/bad/agent\.yaml: ") as refused:
        find_agent("bad", root)
    assert says in str(refused.value)


def test_an_agent_yaml_in_another_encoding_is_named(root: Path) -> None:
    write_agent(root, "bad", "")
    (root / "agents" / "bad" / "agent.yaml").write_bytes(b"title: \xff\n")
    with pytest.raises(IntegrityError, match=r"agent\.yaml is not in UTF-8"):
        find_agent("bad", root)


@pytest.mark.parametrize("folder", ["their agent", "x {home}", "{mine}", "{"])
def test_a_start_script_is_an_agent_of_its_own(root: Path, tmp_path: Path, folder: str) -> None:
    script = tmp_path / folder / "start.sh"
    script.parent.mkdir()
    script.write_text("true\n")
    agent = find_agent(str(script), root)
    assert agent.command() == ["bash", str(script)]
    assert (agent.id, agent.folder) == (folder, script.parent)
    assert agent.forward_env == ()


def test_a_start_script_that_is_not_there_is_a_usage_error(root: Path) -> None:
    for name in ("./absent.sh", "absent.sh", "/nowhere/start", str(root)):
        with pytest.raises(UsageError, match="no agent script"):
            find_agent(name, root)


def test_every_task_folder_loads(settings: Settings) -> None:
    assert "gsm8k" in task_ids(settings.root)
    for task_id in task_ids(settings.root):
        assert load_task(task_id, settings.root).id == task_id
