"""Checks everything that runs need before any of them starts, and reports all problems at once.

    require_ready(specs, settings)           # raises NotReadyError, with one line for each problem

A check is a function that returns what it found, or raises an error whose text says what is wrong and how to fix it.
Runs that agree in everything that a check depends on share it, so a grid of a hundred runs asks a judge once.
"""

import shutil
from collections.abc import Callable, Hashable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from a2rl.agent_systems.definition import Agent, find_agent
from a2rl.agent_systems.installation import Installation
from a2rl.anchor.signing import check_keys
from a2rl.config.estimate import model_size
from a2rl.config.params import load_params
from a2rl.config.provision import Provision, provision_of
from a2rl.core.errors import A2rlError, NotReadyError, UsageError
from a2rl.core.settings import Settings
from a2rl.core.urls import require_certificates, require_proxies
from a2rl.execution.command import readable_by
from a2rl.execution.preflight_probes import check_backend, check_gpus_in_sandbox, check_program, check_python
from a2rl.grading.service_process import listen
from a2rl.judge.params import JudgeConfig
from a2rl.linux.gpus import Inventory, require_answer, usable_gpus
from a2rl.linux.resources import Resources
from a2rl.llm.relay.prices import ADD_PRICE, price_unknown
from a2rl.models.base_model import local_folder, require_known, resolve_model
from a2rl.models.pretrained import CATALOGUE
from a2rl.models.pretrained_store import PretrainedStore
from a2rl.recording.code_history import git_version
from a2rl.run.disk import check_disk, check_download, disk_of_runs
from a2rl.run.gpu_share import GpuCounts, count_gpus, require_gpus_for_one, wants_no_gpu
from a2rl.run.spec import RunSpec
from a2rl.sandbox.isolation import Isolation, SandboxKind
from a2rl.sandbox.selection import select_sandbox
from a2rl.task_api.catalog import load_grader
from a2rl.task_api.contract import ServiceGrader
from a2rl.task_api.data import require_source


class CheckResult(NamedTuple):
    """The result of one check."""

    what: str
    found: str
    """What was found; empty if these runs do not need it."""
    problem: str
    """What is wrong and how to fix it; empty if nothing is."""
    runs: tuple[str, ...]
    """The runs that it concerns."""


class ThisMachine:
    """This machine, as far as several checks need it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.isolation = cache(self._isolation)

    @cached_property
    def gpus(self) -> Inventory:
        """The GPUs that runs may use."""
        return usable_gpus(self.settings)

    def agent(self, spec: RunSpec) -> Agent:
        """Returns the agent of a run."""
        return find_agent(spec.agent, self.settings.root)

    def provision(self, spec: RunSpec) -> Provision:
        """Returns what a run's agent gets in addition."""
        return provision_of(spec, self.agent(spec), self.settings)

    def counts(self, spec: RunSpec) -> GpuCounts:
        """Returns how many GPUs a run takes; none if it asks for more than there are, which has a check of its own."""
        if wants_no_gpu(spec):
            return GpuCounts(0, 0)
        try:
            return count_gpus(spec, self.gpus)
        except UsageError:
            return GpuCounts(0, 0)

    def _isolation(self, kind: SandboxKind) -> Isolation | A2rlError:
        try:
            return select_sandbox(kind, self.settings)
        except A2rlError as error:
            return error


class Check(NamedTuple):
    """One check of the pre-flight."""

    what: str
    depends_on: Callable[[RunSpec], Hashable]
    look: Callable[[RunSpec, ThisMachine], str]
    """Returns what it found, or raises A2rlError; empty if the run does not need it."""
    is_free: bool = True
    """Whether it needs neither the network nor money. `a2rl bench --dry-run` makes only such checks."""


def _sandbox(spec: RunSpec, here: ThisMachine) -> str:
    found = here.isolation(spec.sandbox)
    if isinstance(found, A2rlError):
        raise found
    return str(found)


def _model(spec: RunSpec, here: ThisMachine) -> str:
    """Checks a model that is on this machine. Another one is checked when setup has downloaded it."""
    require_known(spec.model)
    folder = local_folder(spec.model, here.settings)
    if folder is None or (spec.model in CATALOGUE and not folder.is_dir()):
        if spec.model in CATALOGUE:
            PretrainedStore(here.settings).require_licence(CATALOGUE[spec.model])
        return f"{spec.model}, checked after its download"
    return str(resolve_model(spec.model, here.settings))


def _data(spec: RunSpec, here: ThisMachine) -> str:
    """Checks the folder that data comes from before a model is downloaded; setup checks what is in it."""
    require_source(spec.task, spec.variant, Path(spec.source) if spec.source else None, here.settings)
    return spec.source or ""


def _prompts(spec: RunSpec, here: ThisMachine) -> str:
    """Checks that a model that is on this machine can take the task's prompts; setup does so for others."""
    folder, hidden = local_folder(spec.model, here.settings), here.settings.data(spec.task, spec.variant) / "hidden"
    if folder is None or not folder.is_dir():
        return ""
    from a2rl.grading.prompt_check import check_prompts  # takes a tenth of a second

    return check_prompts(spec, spec.model, folder, hidden, here.settings.root)


def _disk(spec: RunSpec, here: ThisMachine) -> str:
    """Checks the space for the base model, if it is not here yet, and for the checkpoints of one run.

    The size of a model that is not here comes from its name.
    """
    size, folder = model_size(spec.model, here.settings).bytes, local_folder(spec.model, here.settings)
    if not size:
        return ""
    if folder is None:
        check_download(spec.model, size)
    elif spec.model in CATALOGUE and not folder.is_dir():
        PretrainedStore(here.settings).require_disk(CATALOGUE[spec.model])
    return check_disk(spec, size, disk_of_runs(here.settings))


def _key(spec: RunSpec, here: ThisMachine) -> str:
    agent = here.agent(spec)
    if missing := Installation(agent, here.settings).missing_key(spec.base_url):
        raise UsageError(f"{agent.title} has {missing}, or name an LLM of your own with --base-url")
    return "" if spec.base_url else ", ".join(here.settings.keys(agent.needs_one_of))


def _limits(_: RunSpec, here: ThisMachine) -> str:
    """Checks the variables that limit what agents may use of the machine."""
    try:
        Resources.of_machine(here.settings.root, here.settings.environ)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return ""


def _price(spec: RunSpec, here: ThisMachine) -> str:
    """Checks that limits on tokens and cost can hold."""
    agent = here.agent(spec)
    limits = {"--max-tokens": spec.max_tokens, "--max-cost-usd": spec.max_cost_usd}
    given = " and ".join(name for name, value in limits.items() if value is not None)
    if given and not agent.takes_base_url and agent.may_call_llm:
        raise UsageError(
            f"the requests of {agent.title} cannot be counted, so {given} could not hold: leave it out, or use "
            "{base_url} in the agent's definition"
        )
    if not agent.calls_llm:
        return ""
    unknown = price_unknown(spec, agent, here.settings)
    if unknown and spec.max_cost_usd is not None:
        raise UsageError(f"{unknown}, and --max-cost-usd could not hold: {ADD_PRICE}, or leave out the limit")
    return unknown or "known"


def _program(spec: RunSpec, here: ThisMachine) -> str:
    """Checks that the agent's program is installed and starts inside the sandbox."""
    installation = Installation(here.agent(spec), here.settings)
    if missing := installation.missing_program():
        raise UsageError(missing)
    isolation = here.isolation(spec.sandbox)
    if isinstance(isolation, A2rlError):
        return ""  # that has a check of its own
    provision = here.provision(spec)
    _require_start(installation.agent, provision, here.settings)
    if isolation.confines:
        own = readable_by(installation.agent, provision, spec.source, here.settings)
        check_python(provision.python.executable, isolation, here.settings, own)
    return check_program(installation, isolation, here.settings, provision.read)


def _require_start(agent: Agent, provision: Provision, settings: Settings) -> None:
    """Requires the program with which an agent starts, unless an installation brings it, or its own PATH."""
    if agent.install or "PATH" in agent.env:
        return
    path = settings.path_after(provision.python.executable.parent, settings.python_bin)
    if not shutil.which(program := agent.command()[0], path=path):
        raise UsageError(f"there is no program {program!r}, with which {agent.title} starts: correct `start`, or PATH")


def _gpus(spec: RunSpec, here: ThisMachine) -> str:
    if wants_no_gpu(spec):
        return ""
    require_answer(here.gpus)
    counts = count_gpus(spec, here.gpus)
    if counts == (0, 0):
        return ""
    require_gpus_for_one(spec.gpus_for_one, counts.grading or counts.agent)
    of_grader = f", and {counts.grading} that only grade" if counts.grading else ""
    total = len(here.gpus.gpus)
    at_a_time = f": {(total - counts.grading) // counts.agent} runs at a time" if counts.agent else ""
    return f"{counts.agent} for the agent{of_grader}, of {total}{at_a_time}"


def _backend(spec: RunSpec, here: ThisMachine) -> str:
    """Checks the environment that grades, with the GPUs that grade."""
    (agent, grading), gpus = here.counts(spec), here.gpus.gpus
    return check_backend(spec.backend, gpus[-grading:] if grading else gpus[:agent], here.settings)


def _gpus_in_sandbox(spec: RunSpec, here: ThisMachine) -> str:
    isolation = here.isolation(spec.sandbox)
    mine = here.gpus.gpus[: here.counts(spec).agent]
    if not mine or isinstance(isolation, A2rlError):
        return ""
    provision = here.provision(spec)
    read = (*provision.python.folders, *provision.read)
    return check_gpus_in_sandbox(mine, isolation, here.settings, provision.python.executable, read)


def _memory(spec: RunSpec, here: ThisMachine) -> str:
    """Plans what the grader takes of a GPU, for a model that is on this machine; setup does so for others."""
    folder = local_folder(spec.model, here.settings)
    if spec.backend != "vllm" or folder is None or not folder.is_dir():
        return ""
    from a2rl.grading.devices import plan_memory  # takes a tenth of a second

    gpus, root = () if wants_no_gpu(spec) else here.gpus.gpus, here.settings.root
    return str(plan_memory(spec, folder, gpus, root))


def _judge_key(spec: RunSpec, here: ThisMachine) -> str:
    if spec.judge is None:
        return ""
    JudgeConfig.by(spec.judge, here.settings)
    return f"{spec.judge.model}, key {spec.judge.api_key_env or 'not needed'}"


def _judge(spec: RunSpec, here: ThisMachine) -> str:
    if spec.judge is None or (spec.judge.api_key_env and not here.settings.keys((spec.judge.api_key_env,))):
        return ""  # the key has a check of its own
    from a2rl.grading.run_judge import check_judge_of  # takes a tenth of a second, and few runs need it

    check_judge_of(spec, here.settings)
    return spec.judge.model


def _services(spec: RunSpec, here: ThisMachine, ask: bool = False) -> str:
    grader = load_grader(spec.task) if spec.options else None
    return grader.check_services(spec.options, here.settings, ask=ask) if isinstance(grader, ServiceGrader) else ""


def _services_answer(spec: RunSpec, here: ThisMachine) -> str:
    try:
        is_used = bool(_services(spec, here))
    except A2rlError:
        return ""  # that has a check of its own
    return _services(spec, here, ask=True) if is_used else ""


def _grading_port(spec: RunSpec, here: ThisMachine) -> str:
    if not spec.grading_port:
        return ""
    listen(spec.grading_port).close()
    return f"{spec.grading_port} is free"


def _anchor(spec: RunSpec, here: ThisMachine) -> str:
    return check_keys(load_params(here.settings.root).anchor, here.settings.root)


CHECKS = (
    Check("proxies", lambda _: "", lambda _, here: require_proxies(here.settings.environ)),
    Check("certificates", lambda _: "", lambda _, here: require_certificates(here.settings.environ)),
    Check("git", lambda _: "", lambda *_: git_version()),  # without the agent's code, every result is flagged
    Check("sandbox", lambda spec: spec.sandbox, _sandbox),
    Check("base model", lambda spec: spec.model, _model),
    Check("data", lambda spec: (spec.task, spec.variant, spec.source), _data),
    Check(
        "prompts",
        lambda spec: (spec.task, spec.variant, spec.model, spec.backend, str(spec.options), str(spec.generation)),
        _prompts,
    ),
    Check("disk", lambda spec: (spec.model, spec.keep, spec.max_submissions), _disk),
    Check("limits of agents", lambda _: "", _limits),
    Check("API key", lambda spec: (spec.agent, spec.base_url), _key),
    Check(
        "price of the driver",
        lambda spec: (spec.agent, spec.driver, spec.base_url, spec.max_tokens is None, spec.max_cost_usd is None),
        _price,
    ),
    Check("agent", lambda spec: (spec.agent, spec.sandbox, spec.python, spec.read), _program),
    Check(
        "GPUs",
        lambda spec: (spec.gpus_per_run, spec.grading_gpus, spec.model, spec.backend, spec.gpus_for_one),
        _gpus,
    ),
    Check("back end", lambda spec: (spec.backend, spec.gpus_per_run, spec.grading_gpus, spec.model), _backend),
    Check(
        "CUDA", lambda spec: (spec.gpus_per_run, spec.model, spec.sandbox, spec.agent, spec.python), _gpus_in_sandbox
    ),
    Check(
        "grader's memory",
        lambda spec: (spec.task, spec.variant, spec.model, spec.backend, str((spec.dtype, spec.vllm, spec.generation))),
        _memory,
    ),
    Check("judge", lambda spec: spec.judge and spec.judge.model_dump_json(), _judge_key),
    Check("search", lambda spec: (spec.task, str(spec.options)), _services),
    Check("grading port", lambda spec: spec.grading_port, _grading_port),
    Check("anchor", lambda spec: (), _anchor),
    Check("judge answers", lambda spec: spec.judge and spec.judge.model_dump_json(), _judge, is_free=False),
    Check("search answers", lambda spec: (spec.task, str(spec.options)), _services_answer, is_free=False),
)


def examine_runs(
    specs: Sequence[RunSpec], settings: Settings, is_wanted: Callable[[Check], bool] = lambda _: True
) -> list[CheckResult]:
    """Makes all checks for runs, each once for all runs that share it.

    Args:
        specs: The specifications of the runs.
        is_wanted: Whether to make a check, such as `lambda check: check.is_free`.
    """
    here = ThisMachine(settings)
    findings = []
    for check in filter(is_wanted, CHECKS):
        shared: dict[Hashable, list[RunSpec]] = {}
        for spec in specs:
            shared.setdefault(check.depends_on(spec), []).append(spec)
        findings += [_result(check, alike, here) for alike in shared.values()]
    return [each for each in findings if each.found or each.problem]


def _result(check: Check, alike: Sequence[RunSpec], here: ThisMachine) -> CheckResult:
    runs = tuple(spec.run_id for spec in alike)
    try:
        return CheckResult(check.what, check.look(alike[0], here), "", runs)
    except A2rlError as error:
        return CheckResult(check.what, "", str(error), runs)


def require_ready(specs: Sequence[RunSpec], settings: Settings) -> None:
    """Makes all checks for runs.

    Raises:
        NotReadyError: They cannot start; it names every problem.
    """
    problems: dict[str, tuple[str, set[str]]] = {}  # several checks and groups of runs may have the same one
    for each in examine_runs(specs, settings):
        if each.problem:
            problems.setdefault(each.problem, (each.what, set()))[1].update(each.runs)
    if problems:
        raise NotReadyError(
            f"{what}: {problem}{_of(len(runs), len(specs))}" for problem, (what, runs) in problems.items()
        )


def _of(concerned: int, total: int) -> str:
    """Returns how many runs a problem concerns, unless it concerns all."""
    return "" if concerned == total else f" (for {concerned} of {total} runs)"
