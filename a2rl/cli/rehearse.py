"""`a2rl rehearse`: tries each link of a real run once, and says which fail and what to do about it."""

import json
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.text import Text

from a2rl.cli.console import print_table, say, say_aside
from a2rl.cli.doctor import examine
from a2rl.config.params import load_params
from a2rl.config.plan import new_launch_id, package_versions, plan_runs
from a2rl.config.suite import replace_settings, single_run
from a2rl.core.errors import A2rlError, InfrastructureError, InterruptedByUserError, UsageError, unknown_name
from a2rl.core.files import FrozenModel, write_atomically
from a2rl.core.settings import Settings
from a2rl.execution.preflight import examine_runs
from a2rl.execution.preflight_probes import vllm_build
from a2rl.linux.gpus import Gpu, usable_gpus
from a2rl.run.disk import disk_of_runs
from a2rl.run.gpu_share import wants_no_gpu
from a2rl.run.spec import RunSpec

STYLES = {"pass": "green", "skipped": "yellow", "fail": "bold red"}
SUITE = "rehearsal"
Outcome = Literal["pass", "fail", "skipped"]


class Row(FrozenModel):
    """A link of the table."""

    link: str
    result: Outcome
    seconds: float
    found: str
    """What it found, or why it failed or was skipped, and what to do about it."""


class SkippedError(A2rlError):
    """A link cannot be tried here, or need not be."""


class Rehearsal:
    """The rehearsal of one run, the one that the user has in mind.

    Args:
        kept: A folder for logs.
        scratch: A folder for checkpoints, on the disk of the runs.
        write: Called with each row, as soon as its link has ended.
    """

    def __init__(
        self, spec: RunSpec, kept: Path, scratch: Path, settings: Settings, write: Callable[[Row], None]
    ) -> None:
        self.spec, self.kept, self.scratch, self.settings, self.write = spec, kept, scratch, settings, write
        self.gpus: Sequence[Gpu] = () if wants_no_gpu(spec) else usable_gpus(settings).gpus

    @contextmanager
    def link(self, name: str, limit_s: float = 300.0) -> Iterator[Callable[[str], None]]:
        """Writes the row of a link, whatever happens in the context, which ends after some time.

        Yields:
            A function to call with what is found.

        Raises:
            InterruptedByUserError: The user stopped it.
        """
        result: Outcome = "fail"
        began, found = time.monotonic(), list[str]()

        def end(*_: object) -> None:
            raise InfrastructureError(f"it takes longer than {limit_s:g} s; what it did is in {self.kept}")

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            yield found.append
            result = "pass"
        except InterruptedByUserError:
            raise
        except SkippedError as why:
            result, found = "skipped", [str(why)]
        except A2rlError as error:
            found = [str(error)]
        except Exception as error:  # noqa: BLE001 - whatever breaks here is what the rehearsal is for
            with (self.kept / "errors.log").open("a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
            found = [f"{type(error).__name__}: {error}; {self.kept / 'errors.log'} says more"]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if any(found):  # a check that this run does not need finds nothing
            self.write(Row(link=name, result=result, seconds=time.monotonic() - began, found="; ".join(found)))

    def check(self, what: str, spec: RunSpec, name: str = "", is_needed: bool = True) -> bool:
        """Makes one of the checks before a run, and returns whether there is no problem.

        Args:
            name: The name of the link; that of the check unless given.
            is_needed: Whether a problem is a failure.
        """
        is_ok = False
        with self.link(name or what) as found:
            results = examine_runs([spec], self.settings, lambda check: check.what == what)
            for problem in (each.problem for each in results if each.problem):
                raise UsageError(problem) if is_needed else SkippedError(problem)
            is_ok = True
            found("; ".join(each.found for each in results))
        return is_ok


Group = Callable[[Sequence[Rehearsal]], None]
"""Tries some links of all runs."""


def rehearse_here(
    given: dict[str, Any], groups: Mapping[str, Group], only: Collection[str], settings: Settings
) -> dict[str, Any]:
    """Tries the links of runs, shows each as it ends, and then all of them, even if the user stops it.

    Args:
        given: The settings of the runs, by the keys of suites.
        only: The groups that are tried; all of them if none is named.

    Returns:
        The report, which is also `rehearsal.json` in its folder.

    Raises:
        UsageError: A setting or a group does not exist.
    """
    if unknown := [name for name in only if name not in groups]:
        raise unknown_name("group of links", unknown[0], groups)
    specs, began, rows, is_complete = planned(given, settings), time.monotonic(), list[Row](), False
    folder = settings.rehearsals / new_launch_id(SUITE)
    folder.mkdir(parents=True)

    def write(spec: RunSpec, row: Row) -> None:
        rows.append(row.model_copy(update={"link": f"{spec.task}: {row.link}"}) if len(specs) > 1 else row)
        text = f"{rows[-1].link}  "
        say_aside(Text.assemble((f"{row.result:<8}", STYLES[row.result]), text, (row.found, "dim")))

    try:
        with tempfile.TemporaryDirectory(dir=disk_of_runs(settings), prefix=".rehearsal-") as scratch:
            rehearsals = [Rehearsal(each, folder, Path(scratch), settings, partial(write, each)) for each in specs]
            for name, group in groups.items():
                if not only or name in only:
                    with rehearsals[0].link(name):  # finds nothing, unless what the links share fails
                        group(rehearsals)
        is_complete = True
    finally:
        report = {
            "passed": is_complete and all(row.result != "fail" for row in rows),
            "complete": is_complete,
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
    failed, seconds = sum(each["result"] == "fail" for each in links), report["seconds"]
    before = "" if report["complete"] else "stopped early: "
    say(f"{before}{failed} of {len(links)} links failed, {seconds:.0f} s; the report and its logs: {report['folder']}")
