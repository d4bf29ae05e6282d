"""Turns a suite into the specifications of its runs, and checks them before anything starts."""

import platform
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from a2rl import __version__
from a2rl.agent_systems.definition import Agent, agent_ids, find_agent, is_script
from a2rl.agent_systems.installation import Installation
from a2rl.config.params import Params
from a2rl.config.preset import load_preset, resolved
from a2rl.config.provision import provision_of
from a2rl.config.suite import Suite, replace_settings
from a2rl.core.errors import UsageError, unknown_name
from a2rl.core.settings import Settings
from a2rl.core.urls import api_address, refuse_credentials
from a2rl.models.base_model import recorded_name, require_known
from a2rl.run.directory import new_run_id
from a2rl.run.draw import Draw
from a2rl.run.spec import DEFAULT_TRIALS, RunSettings, RunSpec
from a2rl.sampling.generation import Generation
from a2rl.scoring.score import STATISTICS
from a2rl.task_api.catalog import find_task, load_task
from a2rl.task_api.contract import Variant
from a2rl.task_api.split import check_limit

PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "safetensors", "numpy", "scipy",
    "scikit-learn", "vllm", "textworld", "alfworld", "mlflow", "prefect",
)  # fmt: skip
"""What computes, and what records it; those that are not installed are left out."""


def choose_suite(params: Params, suite: str, **overrides: Any) -> Suite:
    """Returns a suite of params.yaml with some of its settings replaced.

    Args:
        overrides: New values by the suite's keys. None leaves a setting unchanged.

    Raises:
        UsageError: There is no such suite, or a value is not allowed.
    """
    if suite not in params.suites:
        raise unknown_name("suite", suite, params.suites)
    return replace_settings(params.suites[suite], overrides)


def cells_of(suite: Suite, settings: Settings) -> list[RunSettings]:
    """Returns the settings of every run of a suite, with the ids of tasks that are named by their folders.

    Raises:
        UsageError: There is no such task.
        TaskDefinitionError: The folder of a task breaks its contract.
    """
    cells = suite.cells()
    ids = {task: find_task(task, settings.root) for task in {cell.task for cell in cells}}
    tasks = {task: load_task(task, settings.root) for task in ids.values()}
    return [
        cell.model_copy(update={"task": ids[cell.task], "variant": tasks[ids[cell.task]].nearest(cell.variant)})
        for cell in cells
    ]


def check_cells(cells: Sequence[RunSettings], params: Params, settings: Settings) -> dict[str, Agent]:
    """Checks the settings of runs as far as possible before anything starts.

    Returns:
        The agents of the runs, by name.

    Raises:
        UsageError: A task, an agent or a model does not exist, or settings contradict each other.
    """
    if not cells:
        raise UsageError("the suite has no runs: its `exclude` leaves out every combination")
    for model in {cell.model for cell in cells}:
        require_known(model)
    for url in {cell.base_url for cell in cells if cell.base_url}:
        api_address(url)
    for judge in params.judges.values():
        refuse_credentials(judge.base_url, "a judge's base_url in params.yaml")
    _check_judges(cells, params, settings)
    agents = {name: find_agent(name, settings.root) for name in dict.fromkeys(cell.agent for cell in cells)}
    for cell in cells:
        _check_combination(cell, settings)
        provision_of(cell, agents[cell.agent], settings)
    _check_turns([agents[cell.agent] for cell in cells if cell.max_turns], settings)
    return agents


def _check_combination(cell: RunSettings, settings: Settings) -> None:
    """Raises UsageError if the settings of a run contradict each other."""
    if cell.trials and cell.mode != "multi":
        raise UsageError("--trials is for --mode multi")
    check_source(cell.source, cell.variant)
    if cell.limit is not None:
        items = load_task(cell.task, settings.root).variant(cell.variant).eval_items
        check_limit(cell.limit, items, f"{cell.task} ({cell.variant})", halved=cell.protocol == "strict")


def _check_turns(agents: Sequence[Agent], settings: Settings) -> None:
    """Raises UsageError if one of the agents whose turns are to be limited could go beyond that, or none has turns."""
    unlimited = [agent for agent in agents if not agent.limits_turns]
    driven = [agent for agent in unlimited if agent.may_call_llm]
    if driven or (unlimited and len(unlimited) == len(agents)):
        able = [name for name in agent_ids(settings.root) if find_agent(name, settings.root).limits_turns]
        raise UsageError(
            f"--max-turns: {(driven or unlimited)[0].title} cannot be told a limit on its turns, but {', '.join(able)} "
            "can: leave --max-turns out, or use {max_turns} in the agent's definition"
        )


def shared_port(runs: Iterable[RunSettings]) -> int:
    """Returns a port on which several runs want to be graded, so that they cannot run side by side; 0 if none."""
    [(port, count)] = Counter(run.grading_port for run in runs if run.grading_port).most_common(1) or [(0, 0)]
    return port if count > 1 else 0


def check_source(source: str | Path | None, variant: Variant) -> None:
    """Raises UsageError if there is a copy of data, and the variant uses none."""
    if source and variant == "mini":
        raise UsageError("--source is for the full variant; mini data is generated")


def _check_judges(cells: Sequence[RunSettings], params: Params, settings: Settings) -> None:
    """Checks the judges of runs. Raises UsageError if one does not exist, or if none of the runs is judged."""
    for cell in cells:
        judge = params.judge_for(load_task(cell.task, settings.root), cell.variant, cell.judge)
        if judge is not None and cell.max_judge_usd and not judge.has_price and not judge.serve:
            raise UsageError(
                f"--max-judge-usd needs the prices of the judge {judge.name or judge.model}: give them in params.yaml "
                "(dollars_per_million_prompt_tokens, dollars_per_million_completion_tokens)"
            )
    judged = [cell for cell in cells if cell.variant in load_task(cell.task, settings.root).judged]
    for cell in () if judged else cells:
        options = {"--judge": cell.judge, "--max-judge-usd": cell.max_judge_usd}
        if given := [name for name, value in options.items() if value]:
            raise UsageError(f"{given[0]}: no judge grades {cell.task} ({cell.variant}); leave {given[0]} out")


def plan_runs(suite: Suite, name: str, params: Params, settings: Settings) -> list[RunSpec]:
    """Returns the specifications of all runs of a suite. They share one new launch id, and one draw of the eval sets.

    Args:
        name: The name of the suite, which is recorded in each run.

    Raises:
        UsageError: A task or an agent does not exist, or settings contradict each other.
    """
    cells = cells_of(suite, settings)
    agents = check_cells(cells, params, settings)
    if suite.concurrency > 1 and (port := shared_port(cells)):
        raise UsageError(
            f"--grading-port {port} serves one run at a time, and {suite.concurrency} would run side by side: leave it "
            "out, so that each run gets a free port, or give --concurrency 1"
        )
    common = {
        "suite": name,
        "launch": new_launch_id(name),
        "side_by_side": min(suite.concurrency, len(cells)),
        "grading_limits": params.grading.limits,
        "vllm": params.grading.vllm,
        "exact": params.grading.exact,
        "statistics": STATISTICS,
        "git_commit": git_commit(settings.root),
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    packages = package_versions()
    draws = {file: Draw.read(Path(file)) if file else Draw.fresh() for file in {cell.seed_file for cell in cells}}
    versions = {name: packages | _version_of(agent, settings) for name, agent in agents.items()}
    return [
        RunSpec.model_validate(
            cell.model_dump()
            | common
            | _decided(cell, agents[cell.agent], params, settings)
            | {"draw": draws[cell.seed_file], "split_seed": draws[cell.seed_file].halves_seed}
            | {"versions": versions[cell.agent]}
        )
        for cell in cells
    ]


def _decided(cell: RunSettings, agent: Agent, params: Params, settings: Settings) -> dict[str, Any]:
    """Returns what a run's settings leave open, as decided by its task, its agent and params.yaml."""
    task = load_task(cell.task, settings.root)
    return {
        "run_id": new_run_id(cell.task, agent.id),
        "agent": str(Path(cell.agent).resolve()) if is_script(cell.agent) else cell.agent,
        "model": recorded_name(cell.model),
        "driver": cell.driver or agent.driver,
        "backend": cell.backend or params.grading.backend,
        "dtype": cell.dtype or params.grading.dtype,
        "trials": (cell.trials or DEFAULT_TRIALS) if cell.mode == "multi" else 1,
        "source": str(Path(cell.source).resolve()) if cell.source else None,
        "seed_file": str(Path(cell.seed_file).resolve()) if cell.seed_file else None,
        "limit": None if cell.limit == task.variant(cell.variant).eval_items else cell.limit,
        "generation": _generation(cell, params),
        "options": task.choose(_options(cell, params)),
        "judge": params.judge_for(task, cell.variant, cell.judge),
    }


def plan_again(spec: RunSpec, settings: Settings) -> RunSpec:
    """Returns the specification of a new run with all settings of an earlier one.

    Code and packages are those of this checkout now. The specification says so if they are others than before.
    """
    agent = find_agent(spec.agent, settings.root)
    return spec.model_copy(
        update={
            "run_id": new_run_id(spec.task, agent.id),
            "suite": "runs",  # it is no further run of the suite
            "launch": new_launch_id("rerun"),
            "versions": package_versions() | _version_of(agent, settings),
            "git_commit": git_commit(settings.root),
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "repeats": spec.run_id,
        }
    )


def _options(cell: RunSettings, params: Params) -> dict[str, str]:
    """Returns the options of the task: those of params.yaml, unless a preset has others."""
    preset = load_preset(cell.preset)
    return params.grading.options.get(cell.task, {}) | (preset.of_task(cell.task).options if preset else {})


def _generation(cell: RunSettings, params: Params) -> Generation:
    if (preset := load_preset(cell.preset)) is not None:
        return preset.answers(cell.generation, cell.task, cell.variant, cell.model)
    return resolved(cell.generation, cell.task, cell.variant, cell.model, params.grading.generation)


def new_launch_id(suite: str) -> str:
    """Returns an id for runs that start together, such as smoke-20260412-093015-a1b2. Ids of a suite sort by time."""
    return f"{suite}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _version_of(agent: Agent, settings: Settings) -> dict[str, str]:
    """Returns the version of the agent's own program, if it has one and it is installed."""
    installed = Installation(agent, settings).version
    return {agent.id: installed} if installed else {}


CHANGED = "+changes"
"""The end of a commit's name if files of the checkout differ from it."""
GIT_TIMEOUT_S = 60


def git_commit(root: Path) -> str:
    """Returns the commit of this checkout, with `CHANGED` if files differ from it; empty if it is no repository.

    A repository in which it lies has other code. Git would answer with the commit of that one.
    """
    if not (root / ".git").exists():
        return ""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=40", f"--dirty={CHANGED}"]
    try:
        return subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def package_versions() -> dict[str, str]:
    """Returns the versions of the packages that a result may depend on."""
    found = {"a2rl": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
