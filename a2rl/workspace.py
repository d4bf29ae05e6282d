"""The agent's workspace: what it finds when it starts, and the environment it runs in.

The layout, file names and variables are those of the reference (rdagent/scenarios/rl/autorl_bench,
core/instructions.md), so that an agent written for it runs unchanged.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template

from a2rl.agent import Agent
from a2rl.beneath import Folder
from a2rl.budget import format_duration
from a2rl.errors import SpoiledWorkspace
from a2rl.files import OURS, cannot
from a2rl.grading.limits import MAX_WAITING
from a2rl.grading.quota import quota_in_words
from a2rl.process import SPIN
from a2rl.run import Mode, RunDir
from a2rl.settings import Settings

MODE_RULES: dict[Mode, str] = {
    "free": "Any way of training is allowed: SFT, DPO, GRPO, PPO, online RL, or several in turn.",
    "sft-only": "Supervised fine-tuning only: no reward, no preference and no policy-gradient training.",
    "multi": "Any way of training is allowed. You may be started several times, each time with what came of the last.",
    "rl-only": "Reinforcement learning only, straight from the base model: no supervised training on any answers.",
}
BASIC_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
QUIET = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "GOMP_SPINCOUNT": SPIN,
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def build_workspace(run: RunDir, base_model: Path, visible: Path, description: Path) -> None:
    """Fills a new workspace; an existing one is left as the agent has it.

    Model and data are copies, so that what an agent without a sandbox does to them hurts nobody else. They lie beside
    the workspace, since a sandbox can make a folder writable only as a whole; links lead to them.
    """
    if run.workspace.exists():
        return
    making = run.root / ".workspace"
    _give(run, base_model, visible)
    shutil.rmtree(making, ignore_errors=True)
    for name in ("code", "output", ".home", ".tmp"):
        (making / name).mkdir(parents=True)
    for name in ("data", "models"):
        (making / name).symlink_to(Path("..", run.given.name, name))
    shutil.copyfile(description, making / "description.md")
    (making / "instructions.md").write_text(_instructions(run), encoding="utf-8")
    making.rename(run.workspace)


def _give(run: RunDir, base_model: Path, visible: Path) -> None:
    if run.given.exists():
        return
    making = run.root / ".given"
    shutil.rmtree(making, ignore_errors=True)
    shutil.copytree(visible, making / "data")
    shutil.copytree(base_model, making / "models" / model_name(run.spec.model))
    for path in making.rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    making.rename(run.given)


def model_name(model: str) -> str:
    """What the agent calls the base model: the last part of its id or path."""
    return Path(model.partition("@")[0]).name


def write_run_meta(run: RunDir, **fields: Any) -> None:
    """Tells the agent what it may know of its run. The pipeline never reads this file back.

    Raises:
        SpoiledWorkspace, InfrastructureError: as `write_into_workspace`.
    """
    write_into_workspace(run, {"run_meta.json": json.dumps(fields, indent=2)}, mode=0o644)


def write_into_workspace(run: RunDir, files: Mapping[str, str], mode: int = 0o600) -> None:
    """Writes files into the workspace, which is the agent's: whatever it has put in their way is not followed.

    Raises:
        SpoiledWorkspace: the agent has left the workspace so that this cannot be done.
        InfrastructureError: this machine cannot do it.
    """
    try:
        with Folder.at(run.workspace) as workspace:
            for path, text in files.items():
                workspace.write(path, text, mode)
    except OSError as error:
        if error.errno in OURS:
            raise cannot("write into the agent's workspace", error) from error
        raise SpoiledWorkspace(
            f"the agent left its workspace so that it cannot be started there again: {error.strerror or error}"
        ) from error


def agent_environment(
    run: RunDir,
    agent: Agent,
    grading_url: str,
    settings: Settings,
    names: Mapping[str, str] | None = None,
    before_path: Sequence[Path] = (),
) -> dict[str, str]:
    """All that the agent sees: the basics, its own settings, the secrets it may have, the benchmark's variables.

    Args:
        names: what stands for the names in the texts of its definition.
        before_path: folders of programs that come before all others.
    """
    spec, workspace = run.spec, run.workspace
    name = model_name(spec.model)
    path = [*map(str, before_path), str(settings.python_bin), settings.environ.get("PATH", os.defpath)]
    return {
        **settings.forwarded(BASIC_VARIABLES),
        **QUIET,
        "PATH": os.pathsep.join(path),
        "HOME": str(workspace / ".home"),
        "TMPDIR": str(workspace / ".tmp"),
        **{key: text.format(**(names or {})) for key, text in agent.env.items()},
        **settings.forwarded(agent.forward_env),
        "TASK": spec.task,
        "BASE_MODEL": name,
        "WORKSPACE": str(workspace),
        "MODEL_PATH": str(workspace / "models" / name),
        "DATA_PATH": str(workspace / "data"),
        "OUTPUT_DIR": str(workspace / "output"),
        "GRADING_SERVER_URL": grading_url,
    }


def _instructions(run: RunDir) -> str:
    spec = run.spec
    template = Path(__file__).with_name("instructions.md").read_text(encoding="utf-8")
    text: str = Template(template, undefined=StrictUndefined, keep_trailing_newline=True).render(
        base_model=model_name(spec.model),
        mode=spec.mode,
        mode_rule=MODE_RULES[spec.mode],
        budget=format_duration(spec.budget_s),
        refunds=spec.protocol == "strict",
        strict=spec.protocol == "strict",
        quota=quota_in_words(run),
        waiting=MAX_WAITING,
    )
    return text
