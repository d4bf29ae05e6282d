"""What an agent gets in addition to its workspace: a Python environment, folders, hosts and variables of the user's.

An agent's definition names them for all runs (`python`, `read`, `hosts`, `env` in agents/<id>/agent.yaml), and a run or
suite for itself (`--python`, `--read`, `--hosts`, `--env`). All of them are checked before a run starts, and again at
each start of its agent.

provision = provision_of(spec, agent, settings)
"""

import os
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from a2rl.agent_systems.definition import Agent
from a2rl.agent_systems.installation import TrainingPython, executable_of, training_python
from a2rl.core.errors import UsageError
from a2rl.core.secrets import SECRET_NAME, known_secrets
from a2rl.core.settings import Settings
from a2rl.core.urls import endpoint, refuse_credentials, require_other_host
from a2rl.run.rules import rules
from a2rl.run.spec import RunSettings
from a2rl.sandbox.policy import require_readable
from a2rl.task_api.catalog import load_task, task_ids

HUB_HOST = "huggingface.co"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
"""Without them, each request to the hub is repeated for half a minute before it fails."""
NO_INDEX = {"PIP_NO_INDEX": "1"}
"""Without it, pip repeats its requests to an index that it cannot reach."""
INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED = frozenset({
    "TASK", "BASE_MODEL", "WORKSPACE", "MODEL_PATH", "DATA_PATH", "OUTPUT_DIR", "GRADING_SERVER_URL",
    "SEARCH_URL", "JUDGE_URL", "HOME", "TMPDIR", "PATH", "USER", "LOGNAME", "LD_PRELOAD", "LD_AUDIT",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
})  # fmt: skip
"""Variables that a2rl sets itself, or that could change what runs before the sandbox is closed."""


class Provision(NamedTuple):
    """What an agent gets in addition, checked."""

    python: TrainingPython
    read: tuple[Path, ...]
    """Folders and files of this machine that it may read."""
    hosts: tuple[str, ...]
    """Hosts that it may connect to, in addition to those of its definition."""
    env: dict[str, str]
    """Variables that the run names."""
    offline: dict[str, str]
    """Variables that make programs fail at once where they would wait for a host that the agent may not reach."""


def provision_of(spec: RunSettings, agent: Agent, settings: Settings) -> Provision:
    """Returns what a run's agent gets in addition.

    Raises:
        UsageError: Something does not exist on this machine, or an agent must not have it.
    """
    env, hosts = variables_in(spec.env), (*rules().hosts.allowed, *hosts_in(spec.hosts))
    return Provision(
        _python(spec.python or agent.python, settings),
        tuple(_readable(folder, spec, settings) for folder in (*agent.read, *folders_in(spec.read))),
        hosts,
        env,
        _offline({*agent.hosts, *hosts}, {**agent.env, **env}, bool(hosts)),
    )


def folders_in(text: str) -> tuple[str, ...]:
    """Returns the folders in a text such as `/opt/models:/data`."""
    return tuple(part for part in text.split(os.pathsep) if part)


def hosts_in(text: str) -> tuple[str, ...]:
    """Returns the hosts in a text such as `mirror.example:8080, files.example`.

    Raises:
        UsageError: One of them is not a single host of another machine.
    """
    names = tuple(text.replace(",", " ").split())
    for name in names:
        try:
            require_other_host(name)
        except UsageError as error:
            raise UsageError(f"hosts: {error}") from error
    return names


def variables_in(text: str) -> dict[str, str]:
    """Returns the variables in a text such as `NAME=value OTHER="two words"`.

    Raises:
        UsageError: It has another form, or a variable is reserved or holds a secret.
    """
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"env: {error}: write NAME=value, with quotes around values that have spaces") from error
    found = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or not NAME.fullmatch(name):
            raise UsageError(f"env: {part!r} is not a variable: write NAME=value NAME=value")
        _check_variable(name, value)
        found[name] = value
    return found


def _python(choice: str | None, settings: Settings) -> TrainingPython:
    if choice is not None:  # before it is started: an agent could have made it
        require_readable(executable_of(choice, settings).parent, settings, name="python")
    python = training_python(choice, settings)
    for folder in python.folders if choice is not None else ():
        require_readable(folder, settings, name="python")
    return python


def _readable(folder: str, spec: RunSettings, settings: Settings) -> Path:
    tasks = [load_task(task_id, settings.root) for task_id in task_ids(settings.root)]
    source = Path(spec.source) if spec.source else None
    return require_readable(
        Path(folder), settings, [task.source.repo_id for task in tasks if task.source.repo_id], source
    )


def _offline(hosts: set[str], env: dict[str, str], has_mirror: bool) -> dict[str, str]:
    hub = HUB_HOST in {endpoint(host)[0] for host in hosts} or "HF_ENDPOINT" in env
    index = has_mirror or any(name in env for name in INDEX_VARIABLES)
    return {**({} if hub else OFFLINE), **({} if index else NO_INDEX)}


def _check_variable(name: str, value: str) -> None:
    if name.upper() in RESERVED or name.startswith("A2RL_"):
        raise UsageError(f"env: {name} is set by a2rl itself")
    if SECRET_NAME.search(name) or value in known_secrets().values():
        raise UsageError(
            f"env: {name} looks like a secret, and these values are recorded with the run: name it in `forward_env` of "
            "the agent's definition instead, and set it in your environment"
        )
    if not value.isprintable():
        raise UsageError(f"env: the value of {name} has characters that cannot be printed")
    if "://" in value:
        refuse_credentials(value, f"env {name}")
