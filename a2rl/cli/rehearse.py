"""`a2rl rehearse`: tries each link of a real run once, and says which fail and what to do about it."""

import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from rich.text import Text

from a2rl.cli.console import print_table, say, say_aside
from a2rl.cli.doctor import examine
from a2rl.cli.rehearsal_links import GROUPS, SUITE, Plan, Row
from a2rl.config.params import load_params
from a2rl.config.plan import new_launch_id, package_versions, plan_runs
from a2rl.config.suite import replace_settings, single_run
from a2rl.core.errors import InfrastructureError, UsageError, unknown_name
from a2rl.core.files import FrozenModel, write_model
from a2rl.core.processes import module_command, run_child
from a2rl.core.settings import Settings
from a2rl.execution.preflight_probes import vllm_build
from a2rl.linux.gpus import Hardware, hardware
from a2rl.run.disk import disk_of_runs
from a2rl.run.spec import RunSpec

STYLES = {"pass": "green", "skipped": "yellow", "fail": "bold red"}
COLD_START = "vLLM, cold start"


class Report(FrozenModel):
    """What a rehearsal found: `rehearsal.json`."""

    passed: bool
    seconds: float
    folder: str
    """The folder with this file and the logs, to attach to a report of a problem."""
    hardware: Hardware
    versions: dict[str, str]
    links: list[Row]
    machine: list[dict[str, Any]]
    """What `a2rl doctor` says."""


def rehearse_here(given: dict[str, Any], only: Collection[str], settings: Settings) -> Report:
    """Tries the links of a run, shows each as it ends, and writes the report, also if the user stops it.

    Args:
        given: The settings of the run, by the keys of suites.
        only: The groups of links to try; all of them if there are none.
        settings: The project.

    Raises:
        UsageError: A setting or a group does not exist.
    """
    for name in only:
        if name not in GROUPS:
            raise unknown_name("group of links", name, GROUPS)
    specs, began, rows = planned(given, settings), time.monotonic(), list[Row]()
    folder = settings.rehearsals / new_launch_id(SUITE)
    folder.mkdir(parents=True)
    try:
        for spec in specs:
            name = f"{spec.task}: " if len(specs) > 1 else ""
            for row in links(spec, only or GROUPS, folder, settings):
                rows.append(row.model_copy(update={"link": name + row.link}))
                _announce(rows[-1])
    finally:
        report = Report(
            passed=all(row.result != "fail" for row in rows),
            seconds=round(time.monotonic() - began, 1),
            folder=str(folder),
            hardware=hardware(),
            versions=package_versions(),
            links=rows,
            machine=[each._asdict() for each in examine(settings)],
        )
        write_model(folder / "rehearsal.json", report)
    return report


def planned(given: dict[str, Any], settings: Settings) -> list[RunSpec]:
    """Returns one run for each task and model; vLLM grades where it is installed, unless the user says otherwise.

    Raises:
        UsageError: A setting does not exist or is not allowed.
    """
    params = load_params(settings.root)
    try:
        has_vllm = bool(vllm_build(settings))
    except UsageError:
        has_vllm = True  # a check says what is wrong with it
    default = {"backend": "vllm"} if has_vllm else {}
    return plan_runs(replace_settings(single_run(default), given), SUITE, params, settings)


def links(spec: RunSpec, wanted: Collection[str], folder: Path, settings: Settings) -> Iterator[Row]:
    """Makes the links of a run, each group in a process of its own.

    Args:
        spec: The run.
        wanted: The groups.
        folder: The folder for logs.
        settings: The project.
    """
    kept, scratch = folder / f"{spec.task}-{spec.run_id[-4:]}", disk_of_runs(settings) / f".{folder.name}"
    kept.mkdir()
    for group, (_, limit_s) in GROUPS.items():
        if group not in wanted:
            continue
        plan = Plan(spec=spec, rows=kept / f"{group}.jsonl", scratch=scratch, kept=kept)
        rows = _group(group, limit_s, plan, settings)
        yield from rows
        if any(row.link == COLD_START and row.result == "fail" for row in rows):
            spec = spec.model_copy(update={"backend": "transformers"})  # the run has other links to show


def _group(group: str, limit_s: float, plan: Plan, settings: Settings) -> list[Row]:
    """Runs a group to its end, or its limit, and returns its rows."""
    log, file = plan.kept / f"{group}.log", plan.kept / f"{group}.json"
    root = str(settings.root)
    environment = {**settings.environ, "PYTHONPATH": root, "A2RL_ROOT": root, "PYTHONUNBUFFERED": "1"}
    plan.scratch.mkdir()
    try:
        write_model(file, plan)
        code = run_child(module_command("a2rl.cli.rehearsal_links", group, str(file)), environment, log, limit_s)
        ended = f"its process ended with status {code}"
    except InfrastructureError:
        ended = f"it took longer than the {limit_s:.0f} s of its group"
    finally:
        shutil.rmtree(plan.scratch, ignore_errors=True)
    lines = plan.rows.read_text(encoding="utf-8").splitlines() if plan.rows.exists() else []
    rows = {row.link: row for row in map(Row.model_validate_json, lines)}
    if not rows:
        rows[group] = Row(link=group, result="fail", seconds=0, found="")
    return [
        row.model_copy(update={"found": f"{ended}: {log} says more"}) if row.result == "fail" and not row.found else row
        for row in rows.values()
    ]


def _announce(row: Row) -> None:
    say_aside(Text.assemble((f"{row.result:<8}", STYLES[row.result]), f"{row.link}  ", (row.found, "dim")))


def show(report: Report) -> None:
    """Prints the table of the links."""
    rows = [(row.link, row.result, f"{row.seconds:.1f}", row.found) for row in report.links]
    print_table(("link", "result", "seconds", "what it found, or the remedy"), rows, right=("seconds",))
    failed = sum(row.result == "fail" for row in report.links)
    total = f"{failed} of {len(report.links)} links failed, {report.seconds:.0f} s"
    say(f"{total}; if you report a problem, attach the folder {report.folder}")
