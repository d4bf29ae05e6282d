"""`a2rl doctor`: checks what this machine has for benchmark runs, and says how to get what is missing."""

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from a2rl.agent_systems.installation import training_python
from a2rl.code_execution.pool import CodePool
from a2rl.config.params import load_params
from a2rl.config.plan import plan_runs
from a2rl.config.suite import single_run
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.settings import Settings
from a2rl.core.urls import proxy_for, require_certificates, require_proxies
from a2rl.execution.preflight import examine_runs
from a2rl.execution.preflight_probes import vllm_build
from a2rl.linux import landlock
from a2rl.linux.gpus import Gpu, usable_gpus
from a2rl.linux.resources import GIB, Resources
from a2rl.models.pretrained import CATALOGUE
from a2rl.models.pretrained_store import PretrainedStore
from a2rl.recording.code_history import git_version
from a2rl.run.disk import disk_of_runs, format_bytes
from a2rl.run.spec import RunSettings
from a2rl.sandbox.isolation import LAYERS, Layer, SandboxKind
from a2rl.sandbox.selection import Machine, examine_machine, probe_limits, select_sandbox

ENOUGH_DISK_BYTES = 10e9

WITH_CONTROL_GROUP = "`systemd-run --user --scope -p Delegate=yes`"


class Diagnosis(NamedTuple):
    """The result of one check."""

    what: str
    ok: bool
    optional: bool
    found: str
    mend: str = ""


def examine(settings: Settings) -> list[Diagnosis]:
    """Checks everything that a run may need. This takes a second or two."""
    return [
        Diagnosis("python", True, False, sys.version.split()[0]),
        _git(),
        _network(settings),
        _disk(settings),
        _gpu(settings),
        _pretrained(settings),
        _vllm(settings),
        _agent_python(settings),
        *_sandbox(settings),
        _code_answers(),
        _program(
            "npm",
            True,
            "install Node.js 20 or newer: several agent systems are npm packages (`a2rl agents` lists them)",
        ),
    ]


def examine_run(given: Mapping[str, Any], settings: Settings) -> list[Diagnosis]:
    """Makes the checks of a run with some settings; those that are not given have their defaults.

    Raises:
        UsageError: A setting does not exist or is not allowed.
    """
    defaults = {name: RunSettings.model_fields[name].default for name in ("task", "agent")}
    params = load_params(settings.root)
    specs = plan_runs(single_run({**defaults, **given}), "doctor", params, settings)
    return [
        Diagnosis(each.what, not each.problem, False, each.problem or each.found)
        for each in examine_runs(specs, settings)
    ]


def _git() -> Diagnosis:
    try:
        return Diagnosis("git", True, False, git_version())
    except InfrastructureError as error:
        return Diagnosis("git", False, False, str(error))


def _program(name: str, optional: bool, mend: str) -> Diagnosis:
    found = shutil.which(name)
    return Diagnosis(name, bool(found), optional, found or "not found", "" if found else mend)


def _network(settings: Settings) -> Diagnosis:
    """Says which way each request goes: directly, or through the proxy of the environment."""
    try:
        require_proxies(settings.environ)
    except UsageError as error:
        return Diagnosis("network", False, False, "a proxy that cannot be used", str(error))
    urls = {
        **{
            f"judge {name}": each.base_url for name, each in load_params(settings.root).judges.items() if not each.serve
        },
        "LLM": "https://api.openai.com",
        "hub": settings.environ.get("HF_ENDPOINT") or "https://huggingface.co",
        "package index": settings.environ.get("PIP_INDEX_URL") or "https://pypi.org",
        "this machine": "http://127.0.0.1",
    }
    proxies = {what: proxy_for(url) for what, url in urls.items()}
    ways = [f"{what}: {f'through {each.hostname}' if each else 'directly'}" for what, each in proxies.items()]
    try:
        trusted = require_certificates(settings.environ)
    except UsageError as error:
        return Diagnosis("network", False, False, "; ".join(ways), str(error))
    return Diagnosis("network", True, False, "; ".join([*ways, *([f"certificates: {trusted}"] if trusted else [])]))


def _disk(settings: Settings) -> Diagnosis:
    free = shutil.disk_usage(disk_of_runs(settings)).free
    mend = "" if free >= ENOUGH_DISK_BYTES else "free some space: runs/ keeps all checkpoints"
    return Diagnosis("disk", not mend, False, f"{format_bytes(free)} free", mend)


def _gpu(settings: Settings) -> Diagnosis:
    here = usable_gpus(settings)
    if not here.gpus:
        found = here.problem or "none, which is enough for small models"
        return Diagnosis("gpu", False, True, found, "models of billions of weights need an NVIDIA GPU and its driver")
    listing = ", ".join(f"{gpu}{_free(gpu)}" for gpu in here.gpus)
    return Diagnosis("gpu", True, True, f"{len(here.gpus)}: {listing}", here.problem)


def _free(gpu: Gpu) -> str:
    if gpu.free_bytes is None or gpu.total_bytes is None:
        return ""
    return f", {gpu.free_bytes / GIB:.0f} of {gpu.total_bytes / GIB:.0f} GiB free"


def _pretrained(settings: Settings) -> Diagnosis:
    """Lists the pretrained models that are here; none is needed, and a run downloads the one that it names."""
    store = PretrainedStore(settings)
    found = ", ".join(f"{model.name}: {store.state(model)}" for model in CATALOGUE.values())
    here = all(store.state(model) == "ready" for model in CATALOGUE.values())
    return Diagnosis("models", True, True, found, "" if here else "`a2rl models get NAME` downloads one; so does a run")


def _vllm(settings: Settings) -> Diagnosis:
    try:
        found = vllm_build(settings)
    except UsageError as error:
        return Diagnosis("vllm", False, True, str(error))
    if found:
        return Diagnosis("vllm", True, True, found)
    mend = "run `scripts/setup_environment.sh vllm`"
    return Diagnosis("vllm", False, True, "not installed; grading uses transformers", mend)


def _agent_python(settings: Settings) -> Diagnosis:
    """Reports the Python environment with which agents train."""
    try:
        python = training_python(None, settings)
    except UsageError as error:
        mend = "remove .venv-agent or unset A2RL_AGENT_PYTHON, then `scripts/setup_environment.sh agent`"
        return Diagnosis("agent python", False, False, str(error), mend)
    if settings.agent_python is not None:
        again = "once you have mended that, remove .venv-agent and run `scripts/setup_environment.sh agent`"
        mend = again if python.left_out else ""
        return Diagnosis("agent python", True, True, str(python), mend)
    mend = "`scripts/setup_environment.sh agent` makes one for agents: with a GPU, also vLLM, DeepSpeed and others"
    return Diagnosis("agent python", True, True, f"a2rl's own, {python}", mend)


def _sandbox(settings: Settings) -> list[Diagnosis]:
    """Checks what can confine agents here: each kind of sandbox, and then the layers of which it consists."""
    try:
        machine = examine_machine(settings)
    except InfrastructureError as error:
        return [Diagnosis("sandbox", False, False, str(error))]
    version = f"version {machine.landlock}" if machine.landlock else "none"
    whole = machine.landlock >= landlock.SCOPES_ABI
    return [
        _kind("landlock", settings),
        _kind("bwrap", settings),
        Diagnosis("  Landlock", whole, True, version, "" if whole else "version 6, which has scopes, needs Linux 6.12"),
        Diagnosis("  seccomp", machine.seccomp, True, "every connection is checked" if machine.seccomp else "none"),
        *(_own(layer, machine) for layer in ("user", "devices", "processes")),
        _resources(settings),
    ]


def _kind(kind: SandboxKind, settings: Settings) -> Diagnosis:
    """Checks whether a kind of sandbox works, by trying it in the same way as before a run."""
    mend = "use another --sandbox, or --sandbox none with agents that you trust"
    try:
        return Diagnosis(kind, True, False, str(select_sandbox(kind, settings)))
    except (UsageError, InfrastructureError) as error:
        return Diagnosis(kind, False, True, str(error), mend)


def _own(layer: Layer, machine: Machine) -> Diagnosis:
    if layer in machine.own:
        return Diagnosis(f"  {layer}", True, True, LAYERS[layer])
    why = machine.why_not.get(layer, "unavailable here")
    return Diagnosis(f"  {layer}", False, True, why, "docs/sandbox.md says what follows from that")


def _resources(settings: Settings) -> Diagnosis:
    """Reports the limits on the resources that an agent may use, and what enforces them."""
    try:
        wanted, here = Resources.of_machine(settings.root, settings.environ), probe_limits()
    except ValueError as error:
        return Diagnosis("  limits", False, False, str(error), "correct it, or unset it")
    most = f"memory {wanted.memory / GIB:.0f} GiB, {wanted.processes} processes, disk {wanted.disk / GIB:.0f} GiB"
    enforced_by = ", ".join(sorted(set(here.limits.values()))) or "nothing"
    found = f"{most}, enforced by {enforced_by}; agents are stopped by {here.ends_by}"
    if here.unlimited:
        how = f"run as root, or under {WITH_CONTROL_GROUP}" if os.geteuid() else "limit this container or job itself"
        mend = f"no limit on {', '.join(here.unlimited)}: {how}"
        return Diagnosis("  limits", False, True, found, mend)
    return Diagnosis("  limits", True, True, found)


def _code_answers() -> Diagnosis:
    try:
        with CodePool(most=1) as pool:
            return Diagnosis("code answers", True, True, str(pool.layers))
    except InfrastructureError as error:
        return Diagnosis("code answers", False, True, str(error), "only humaneval needs it")
