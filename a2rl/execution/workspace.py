"""The agent's workspace: the files that it finds when it starts, and its environment variables.

The layout, file names and variables are those of the reference (rdagent/scenarios/rl/autorl_bench,
core/instructions.md), so that an agent written for the reference runs unchanged.
"""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from a2rl.agent_systems.definition import Agent
from a2rl.config.provision import Provision, provision_of
from a2rl.core.errors import SpoiledWorkspaceError
from a2rl.core.files import MACHINE_ERRORS, machine_failure
from a2rl.core.processes import OPENMP_SPIN_COUNT
from a2rl.core.settings import Settings
from a2rl.execution.prompt import render_instructions
from a2rl.grading.agent_services import JUDGE, SEARCH
from a2rl.linux.gpus import Gpu
from a2rl.linux.placing import place_folder
from a2rl.linux.untrusted_folder import UntrustedFolder, entries_below
from a2rl.models.base_model import reference_name
from a2rl.recording import tracer
from a2rl.run.directory import RunDir
from a2rl.run.gpu_share import share_of
from a2rl.run.inputs import given_model
from a2rl.sandbox.isolation import NONE, Isolation
from a2rl.task_api.catalog import load_task

TRACER = "tracer"
"""The folder with what the agent's Python programs load: see a2rl/recording/tracer.py."""
BASIC_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
QUIET = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "GOMP_SPINCOUNT": OPENMP_SPIN_COUNT,
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
ON_SEVERAL_GPUS = {"NCCL_CUMEM_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}
"""Lets processes in the sandbox share memory by CUDA IPC and files in /dev/shm. By default, they would send each other
file descriptors in datagrams, which the sandbox does not let out."""
MAX_ENTRIES = 1_000_000
"""The number of files and folders that are examined."""


def build_workspace(
    run: RunDir,
    base_model: Path,
    visible: Path,
    description: Path,
    provision: Provision | None = None,
    isolation: Isolation = NONE,
) -> None:
    """Creates the workspace, with the agent's code of a run that began elsewhere; an existing one is left as it is.

    Model and data are not copied if a sandbox protects them: their files are clones, second names or links of the
    originals (a2rl/linux/placing.py). Without a sandbox, they are clones or copies, so that an agent cannot damage the
    originals. They are stored next to the workspace, because a sandbox can make a folder writable only as a whole. The
    workspace contains links to them.

    Args:
        provision: What the agent gets in addition, which the instructions list.
    """
    _give(run, base_model, visible, isolation)
    if run.workspace.exists():
        return
    making = run.root / ".workspace"
    shutil.rmtree(making, ignore_errors=True)
    for name in ("code", "output", ".home", ".tmp"):
        (making / name).mkdir(parents=True)
    for name in ("data", "models"):
        (making / name).symlink_to(Path("..", run.given.name, name))
    shutil.copyfile(description, making / "description.md")
    (making / "instructions.md").write_text(render_instructions(run, provision), encoding="utf-8")
    if run.code.is_dir():
        ours = shutil.ignore_patterns(".git")
        shutil.copytree(run.code, making / "code", ignore=ours, symlinks=True, dirs_exist_ok=True)
    making.rename(run.workspace)


def _give(run: RunDir, base_model: Path, visible: Path, isolation: Isolation) -> None:
    if run.given.exists():
        return
    making = run.root / ".given"
    shutil.rmtree(making, ignore_errors=True)
    model = making / "models" / reference_name(run.spec.model)
    model.parent.mkdir(parents=True)
    for original, target in ((visible, making / "data"), (base_model, model)):
        place_folder(original, target, share=isolation.confines, public="user" in isolation.layers)
    loaded = making / TRACER / "sitecustomize.py"
    loaded.parent.mkdir()
    shutil.copyfile(tracer.__file__, loaded)
    for folder in (making, loaded.parent, loaded, *model.parents):
        if "user" in isolation.layers and folder.is_relative_to(making):
            folder.chmod(0o755)  # whatever the user's umask is
    making.rename(run.given)


def write_into_workspace(workspace: Path, files: Mapping[str, str], mode: int = 0o600) -> None:
    """Writes files into the workspace, which the agent controls: links that it has put there are not followed.

    Args:
        files: Text by path relative to it.

    Raises:
        SpoiledWorkspaceError: The agent has changed the workspace so that the files cannot be written.
        InfrastructureError: They cannot be written for another reason, such as a full disk.
    """
    try:
        with UntrustedFolder.at(workspace) as folder:
            for path, text in files.items():
                folder.write(path, text, mode)
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise machine_failure("write into the agent's workspace", error) from error
        raise SpoiledWorkspaceError(
            f"the agent changed its workspace so that it cannot be started there again: {error.strerror or error}"
        ) from error


def agent_environment(
    run: RunDir,
    agent: Agent,
    grading_url: str,
    settings: Settings,
    names: Mapping[str, str] | None = None,
    before_path: Sequence[Path] = (),
) -> dict[str, str]:
    """Returns the agent's environment variables: basics, its own settings, its secrets, the benchmark's variables.

    Args:
        names: Values of the placeholders in the definition's texts.
        before_path: Folders of programs that come first on the PATH.
    """
    spec, workspace = run.spec, run.workspace
    name, provision = given_model(run).relative_to(run.given / "models"), provision_of(run.spec, agent, settings)
    programs = (*before_path, provision.python.executable.parent, settings.python_bin)
    own = {key: text.format(**(names or {})) for key, text in agent.env.items()} | provision.env
    return {
        **settings.forwarded(BASIC_VARIABLES),
        **QUIET,
        **(ON_SEVERAL_GPUS if spec.sandbox != "none" else {}),
        **provision.offline,
        "PATH": settings.path_after(*programs),
        "HOME": str(workspace / ".home"),
        "TMPDIR": str(workspace / ".tmp"),
        **own,
        **settings.keys(agent.forward_env),
        "TASK": spec.task,
        "BASE_MODEL": str(name),
        "WORKSPACE": str(workspace),
        "MODEL_PATH": str(workspace / "models" / name),
        "DATA_PATH": str(workspace / "data"),
        "OUTPUT_DIR": str(workspace / "output"),
        "GRADING_SERVER_URL": grading_url,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(run.given / TRACER), own.get("PYTHONPATH", "")))),
        tracer.VARIABLE: str(workspace / tracer.FILE),
        **gpu_variables(share_of(run, settings).agent),
        **_services(spec.task, grading_url, settings),
    }


def gpu_variables(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Returns the variables that show an agent these GPUs and no others.

    UUIDs are right whether or not the other GPUs are hidden from it, which changes the indices.
    """
    uuids = ",".join(gpu.uuid for gpu in gpus)
    shown = {"CUDA_VISIBLE_DEVICES": uuids, "NVIDIA_VISIBLE_DEVICES": uuids or "void"}
    return shown | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _services(task: str, grading_url: str, settings: Settings) -> dict[str, str]:
    """Returns the addresses of the task's services for the agent's own rollouts; none if it has no services."""
    if not load_task(task, settings.root).serves_agents:
        return {}
    return {"SEARCH_URL": f"{grading_url}{SEARCH}", "JUDGE_URL": f"{grading_url}{JUDGE}"}


def last_change(workspace: Path) -> float:
    """Returns when something below the workspace was last changed, in Unix seconds.

    It reads ctime, which the kernel sets and no process can choose. Nothing outside of the workspace is read, whatever
    processes change meanwhile.

    Returns:
        The time; infinite if the agent left more entries than can be examined, or some that cannot be opened.
    """
    try:
        root = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return math.inf
    latest = 0.0
    try:
        for place, (_, entry) in enumerate(entries_below(root)):
            if place == MAX_ENTRIES:  # a single folder can have any number
                return math.inf
            latest = max(latest, entry.stat(follow_symlinks=False).st_ctime)
        return latest
    except (OSError, ValueError):
        return math.inf
    finally:
        os.close(root)
