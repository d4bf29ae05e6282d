"""From a grid of settings to run specs: every task with every agent and every seed, checked before anything starts."""

import itertools
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from a2rl import __version__
from a2rl.agent import Agent
from a2rl.catalog import find_agent, load_task
from a2rl.errors import UsageError, unknown
from a2rl.files import explain
from a2rl.installation import Installation
from a2rl.keys import refuse_password
from a2rl.params import Grid, Params
from a2rl.run import MODES, PROTOCOLS, SANDBOXES, RunSpec, new_run_id
from a2rl.score import STATISTICS
from a2rl.settings import Settings

TRIALS = 3
"""Attempts of mode `multi`, unless the suite says."""
PACKAGES = ("torch", "transformers", "trl", "mlflow", "prefect")


def choose_grid(params: Params, suite: str, **overrides: Any) -> Grid:
    """A suite of params.yaml with some of its settings replaced; None leaves a setting as it is.

    Raises:
        UsageError: no such suite, or a value that is not allowed.
    """
    if suite not in params.suites:
        raise unknown("suite", suite, params.suites)
    for key, known in (("mode", MODES), ("protocol", PROTOCOLS), ("sandbox", SANDBOXES), ("variant", ("mini", "full"))):
        if overrides.get(key) is not None and overrides[key] not in known:
            raise unknown(key, overrides[key], known)
    given = {key: value for key, value in overrides.items() if value is not None}
    if "budget" in given:
        given.setdefault("budgets", {})
    try:
        return Grid.model_validate(params.suites[suite].model_dump() | given)
    except ValidationError as error:
        raise UsageError(explain(error)) from error


def plan_runs(grid: Grid, suite: str, params: Params, settings: Settings) -> list[RunSpec]:
    """One spec for each cell of the grid.

    Raises:
        UsageError: a task, an agent or the budget does not exist.
    """
    for task in grid.tasks:
        load_task(task, settings.root)
    if grid.base_url:
        refuse_password(grid.base_url, "--base-url")
    for judge in (params.judge, *params.judges.values()):
        refuse_password(judge.base_url, "a judge's base_url in params.yaml")
    agents = {name: find_agent(name, settings.root) for name in grid.agents}
    if grid.trials and grid.mode != "multi":
        raise UsageError("--trials is for --mode multi")
    if grid.source and grid.variant == "mini":
        raise UsageError("--source is for the full variant; mini data is generated")
    commit, packages = git_commit(settings.root), package_versions()
    return [
        RunSpec(
            run_id=new_run_id(task, agents[agent].id),
            suite=suite,
            task=task,
            variant=grid.variant,
            agent=str(Path(agent).resolve()) if Path(agent).is_file() else agent,
            driver=grid.driver or agents[agent].driver,
            base_url=grid.base_url,
            mode=grid.mode,
            trials=(grid.trials or TRIALS) if grid.mode == "multi" else 1,
            max_turns=grid.max_turns,
            max_tokens=grid.max_tokens,
            max_cost_usd=grid.max_cost_usd,
            model=grid.model,
            protocol=grid.protocol,
            seed=seed,
            budget_s=grid.budget_s(task),
            max_submissions=grid.max_submissions,
            max_grading_s=grid.max_grading_s(),
            grading_limits=params.grading.limits,
            source=grid.source,
            backend=params.grading.backend,
            exact=params.grading.exact,
            options=load_task(task, settings.root).choose(params.grading.options.get(task, {})),
            judge=params.judge_for(load_task(task, settings.root), grid.variant),
            split_seed=params.grading.split_seed,
            statistics=STATISTICS,
            grading_port=grid.grading_port,
            sandbox=grid.sandbox,
            git_commit=commit,
            versions=packages | _version_of(agents[agent], settings),
            created_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )
        for task, agent, seed in itertools.product(grid.tasks, grid.agents, grid.seeds)
    ]


def _version_of(agent: Agent, settings: Settings) -> dict[str, str]:
    """Of the agent's own program, where it has one and that is installed."""
    installed = Installation(agent, settings).version
    return {agent.id: installed} if installed else {}


def git_commit(root: Path) -> str:
    """The commit of this checkout, marked `+changes` if files differ from it; empty outside git."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+changes" if changed.strip() else "")


def package_versions() -> dict[str, str]:
    """Versions that a result may depend on."""
    found = {"a2rl": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
