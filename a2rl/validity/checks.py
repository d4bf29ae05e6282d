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

from a2rl.core.errors import InterruptedByUserError
from a2rl.validity.evidence import RunEvidence
from a2rl.validity.finding import Evidence, Finding

Check = Callable[[RunEvidence], Iterable[Finding]]
"""A check reads the evidence and returns what it found; it changes nothing in the run."""
NOT_CHECKED = "not-checked"


class CheckRun(BaseModel):
    """One check that was made, and what it took."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    seconds: float
    findings: int


class Checked(NamedTuple):
    """The outcome of all checks."""

    findings: list[Finding]
    runs: list[CheckRun]


def run_checks(evidence: RunEvidence, checks: Iterable[Check]) -> Checked:
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


def name_of(check: Check) -> str:
    """Returns the name of a check: that of its function."""
    return getattr(check, "__name__", type(check).__name__)


def _run(check: Check, evidence: RunEvidence) -> list[Finding]:
    try:
        return list(check(evidence))
    except InterruptedByUserError:
        raise
    except Exception as error:  # noqa: BLE001 # a check reads what agents wrote, and no agent may end the pipeline
        text = f"The check {name_of(check)} could not be made: {type(error).__name__}."
        return [Finding.of(NOT_CHECKED, "flag", text, Evidence(what="the error", value=str(error)))]
