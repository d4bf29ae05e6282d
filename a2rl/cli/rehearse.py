"""`a2rl rehearse`: tries each link of a real run once, and says which fail and what to do about it."""

import json
import tempfile
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from a2rl.cli.console import print_table, say, say_aside
from a2rl.cli.doctor import examine
from a2rl.cli.rehearsal_links import GROUPS, Rehearsal, Row, run
from a2rl.config.params import load_params
from a2rl.config.plan import new_launch_id, package_versions, plan_runs
from a2rl.config.suite import replace_settings, single_run
from a2rl.core.errors import UsageError, unknown_name
from a2rl.core.files import write_atomically
from a2rl.core.settings import Settings
from a2rl.execution.preflight_probes import vllm_build
from a2rl.run.disk import disk_of_runs
from a2rl.run.spec import RunSpec

STYLES = {"pass": "green", "skipped": "yellow", "fail": "bold red"}
SUITE = "rehearsal"


def rehearse_here(given: dict[str, Any], only: Collection[str], settings: Settings) -> dict[str, Any]:
    """Tries the links of a run, shows each as it ends, and then all of them, even if the user stops it.

    Args:
        given: The settings of the run, by the keys of suites.
        only: The groups of links to try; all of them if there are none.
        settings: The project.

    Returns:
        The report, which is also `rehearsal.json` in its folder.

    Raises:
        UsageError: A setting or a group does not exist.
    """
    wanted = only or (*GROUPS, run.__name__)
    for name in wanted:
        if name not in (*GROUPS, run.__name__):
            raise unknown_name("group of links", name, (*GROUPS, run.__name__))
    specs, began, rows = planned(given, settings), time.monotonic(), list[Row]()
    folder = settings.rehearsals / new_launch_id(SUITE)
    folder.mkdir(parents=True)

    def write(spec: RunSpec, row: Row) -> None:
        rows.append(row.model_copy(update={"link": f"{spec.task}: {row.link}"}) if len(specs) > 1 else row)
        shown = rows[-1]
        say_aside(Text.assemble((f"{row.result:<8}", STYLES[row.result]), f"{shown.link}  ", (row.found, "dim")))

    try:
        with tempfile.TemporaryDirectory(dir=disk_of_runs(settings), prefix=".rehearsal-") as scratch:
            rehearsals = [Rehearsal(each, folder, Path(scratch), settings, partial(write, each)) for each in specs]
            for here in rehearsals:
                for group in (GROUPS[name] for name in GROUPS if name in wanted):
                    group(here)
            if run.__name__ in wanted:
                run(rehearsals)
    finally:
        report = {
            "passed": all(row.result != "fail" for row in rows),
            "seconds": round(time.monotonic() - began, 1),
            "folder": str(folder),
            "links": [row.model_dump() for row in rows],
            "doctor": [each._asdict() for each in examine(settings)],
            "versions": package_versions(),
        }
        write_atomically(folder / "rehearsal.json", json.dumps(report, indent=2))
        _show(report)
    return report


def planned(given: dict[str, Any], settings: Settings) -> list[RunSpec]:
    """Returns one run for each task and model; vLLM grades where it is installed, unless the user says otherwise.

    Raises:
        UsageError: A setting does not exist or is not allowed.
    """
    try:
        has_vllm = bool(vllm_build(settings))
    except UsageError:
        has_vllm = True  # a check says what is wrong with it
    suite = replace_settings(single_run({"backend": "vllm"} if has_vllm else {}), given)
    return plan_runs(suite, SUITE, load_params(settings.root), settings)


def _show(report: dict[str, Any]) -> None:
    links = report["links"]
    rows = [(each["link"], each["result"], f"{each['seconds']:.1f}", each["found"]) for each in links]
    print_table(("link", "result", "seconds", "what it found, or the remedy"), rows, right=("seconds",))
    failed = sum(each["result"] == "fail" for each in links)
    say(
        f"{failed} of {len(links)} links failed, {report['seconds']:.0f} s; the report and its logs: {report['folder']}"
    )
