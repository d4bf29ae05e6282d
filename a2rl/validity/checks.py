"""Runs checks over a run. A check is a plain function; there is nothing to register it with.

def outlived(evidence: RunEvidence) -> Iterator[Finding]:
    for entry in evidence.entries:
        if isinstance(entry.event, ProcessesSurvived):
            place = Evidence(what="the event", seq=entry.seq)
            yield Finding.of("survivors", "void", "Processes of the agent outlived it.", place)

`stages/validity.py` lists the checks that a run gets.
"""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from a2rl.core.errors import InfrastructureError, InterruptedByUserError
from a2rl.core.processes import read_apart
from a2rl.llm.keys import keys_message
from a2rl.validity.evidence import RunEvidence
from a2rl.validity.finding import Evidence, Finding

CheckFunction = Callable[[RunEvidence], Iterable[Finding]]
"""A check reads the evidence and returns what it found; it changes nothing in the run."""
NOT_CHECKED = "not-checked"
TIMEOUT_S = 1800.0
"""Of all checks that are made in a process of their own."""


class CheckRun(BaseModel):
    """One check that was made, and what it took."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    seconds: float
    findings: int


class CheckMade(BaseModel):
    """A line that the process for checks prints."""

    run: CheckRun
    findings: tuple[Finding, ...]


class Checked(NamedTuple):
    """The outcome of all checks."""

    findings: list[Finding]
    runs: list[CheckRun]


def run_checks(evidence: RunEvidence, checks: Iterable[CheckFunction]) -> Checked:
    """Makes the checks one after the other.

    A check that fails is itself a finding: otherwise, whoever makes a check fail would escape it.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
    """
    done = Checked([], [])
    for check in checks:
        started = time.monotonic()
        found = _run(check, evidence)
        done.findings.extend(found)
        done.runs.append(CheckRun(name=name_of(check), seconds=time.monotonic() - started, findings=len(found)))
    return done


def name_of(check: CheckFunction) -> str:
    """Returns the name of a check: that of its function."""
    return getattr(check, "__name__", type(check).__name__)


def _run(check: CheckFunction, evidence: RunEvidence) -> list[Finding]:
    try:
        return list(check(evidence))
    except InterruptedByUserError:
        raise
    except Exception as error:  # noqa: BLE001 # a check reads what agents wrote, and no agent may end the pipeline
        return [could_not_check(f"the check {name_of(check)}", error)]


def could_not_check(what: str, error: Exception) -> Finding:
    """Returns what casts doubt on a result because something of it could not be checked."""
    text = f"{what[:1].upper()}{what[1:]} could not be made: {type(error).__name__}."
    return Finding.of(NOT_CHECKED, "flag", text, Evidence(what="the error", value=str(error)))


def run_checks_apart(evidence: RunEvidence, checks: Iterable[CheckFunction]) -> Checked:
    """Makes checks in a process of their own, because of what they read. A check that ends it, or takes too long, is a
    finding, and the checks after it are made in another process.

    Args:
        evidence: The run.
        checks: Functions of modules.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
    """
    done, waiting = Checked([], []), list(checks)
    while waiting:
        names = [f"{check.__module__}:{name_of(check)}" for check in waiting]
        began, error = time.monotonic(), Exception()
        try:
            read = read_apart(
                "a2rl.validity", [str(evidence.run.root), *names], evidence.settings, keys_message({}), TIMEOUT_S
            )
            for line in read.output.splitlines():
                made = CheckMade.model_validate_json(line)
                done.findings.extend(made.findings)
                done.runs.append(made.run)
                waiting.pop(0)
            error = InfrastructureError(read.problem or "it said nothing")
        except (OSError, ValueError) as failure:
            error = failure
        if waiting:
            name = name_of(waiting.pop(0))
            done.findings.append(could_not_check(f"the check {name}", error))
            done.runs.append(CheckRun(name=name, seconds=time.monotonic() - began, findings=1))
    return done
