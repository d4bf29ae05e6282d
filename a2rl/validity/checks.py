"""Runs checks over a run. A check is a plain function of what is known of the run; nothing registers it.

def outlived(evidence: RunEvidence) -> Iterator[Finding]:
    for entry in evidence.entries:
        if isinstance(entry.event, ProcessesSurvived):
            place = Evidence(what="the event", seq=entry.seq)
            yield Finding.of("survivors", "void", "Processes of the agent outlived it.", place)

`stages/validity.py` lists the checks that a run gets. Most read what an agent wrote, so they are made in a process of
their own, `python -P -m a2rl.validity.checks RUN MODULE:CHECK ...`, which prints a line of JSON after each.
"""

import errno
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path

from pydantic import TypeAdapter

from a2rl.core.errors import InfrastructureError, InterruptedByUserError
from a2rl.core.files import MACHINE_ERRORS, machine_failure, read_model
from a2rl.core.processes import OF_MACHINE, read_apart
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeResult
from a2rl.grading.pool import is_of_machine
from a2rl.linux.resources import GIB, spare_memory
from a2rl.llm.keys import keys_message, receive_keys
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.inputs import base_model_of
from a2rl.run.ledger import Entry, events_of
from a2rl.run.ranking import Ranked, best_among
from a2rl.run.records import ExecuteRecord, GradeRecord, SetupRecord
from a2rl.scoring.score import ItemResult
from a2rl.task_api.contract import Split
from a2rl.validity.record import Evidence, Finding


@dataclass(frozen=True)
class RunEvidence:
    """A run whose stage `grade` is done, or has failed. A record is None if its stage was not finished.

    Everything here that an agent wrote is hostile: names, code, weights. A check treats it as such.
    """

    run: RunDir
    settings: Settings

    @cached_property
    def grade(self) -> GradeRecord:
        """The result that is judged."""
        return self.run.need("grade", GradeRecord)

    @cached_property
    def setup(self) -> SetupRecord | None:
        """How the run was set up."""
        return self.run.read("setup", SetupRecord)

    @cached_property
    def base_model(self) -> Path:
        """The folder of the base model.

        Raises:
            MissingInputError: It is no longer there.
        """
        return base_model_of(self.run)

    @cached_property
    def execute(self) -> ExecuteRecord | None:
        """How the agent ended."""
        return self.run.read("execute", ExecuteRecord)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The ledger."""
        return tuple(self.run.ledger.entries())

    @cached_property
    def accepted(self) -> tuple[SubmissionAccepted, ...]:
        """The accepted submissions, in order."""
        return tuple(events_of(self.entries, SubmissionAccepted))

    @cached_property
    def best(self) -> Ranked | None:
        """The submission that counts; None if there is none."""
        return best_among(self.entries)

    @cached_property
    def baseline_items(self) -> tuple[ItemResult, ...]:
        """The base model's results on all items of the run.

        Raises:
            IntegrityError: The file cannot be read.
            FileNotFoundError: It was not graded.
        """
        return read_model(self.run.baseline_items, GradeResult).items

    def items(self, weights_digest: str, split: Split) -> tuple[ItemResult, ...] | None:
        """Returns a checkpoint's results on a split; None if it was not graded there."""
        path = self.run.items(weights_digest, split)
        return read_model(path, GradeResult).items if path.exists() else None


CheckFunction = Callable[[RunEvidence], Iterable[Finding]]
"""A check reads the evidence and returns what it found; it changes nothing in the run."""
NOT_CHECKED = "not-checked"
CPU_S, MOST_MEMORY = 1800, 32 * GIB
"""The limits of a process for checks: what is written to make it reach them is hostile, and no machine's fault..."""
PATIENCE = 4
"""...and so many times as long may it take, because others use the machine as well."""


FINDINGS = TypeAdapter(list[Finding])
"""What the process for checks prints in a line."""


def run_checks(evidence: RunEvidence, checks: Iterable[CheckFunction]) -> list[Finding]:
    """Makes the checks one after the other, and returns what they found.

    A check that fails is itself a finding: otherwise, whoever makes a check fail would escape it.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        InfrastructureError: This machine cannot make one; the stage fails, and is repeated.
    """
    return [finding for check in checks for finding in _run(check, evidence)]


def _run(check: CheckFunction, evidence: RunEvidence) -> list[Finding]:
    try:
        return list(check(evidence))
    except InterruptedByUserError:
        raise
    except Exception as error:  # a check reads what agents wrote, and no agent may end the pipeline
        if isinstance(error, OSError) and error.errno in MACHINE_ERRORS - {errno.ENOMEM}:  # there may be a limit on it
            raise machine_failure(f"make the check {check.__name__}", error) from error
        if is_of_machine(error):
            raise
        return [could_not_check(f"the check {check.__name__}", error)]


def could_not_check(what: str, error: Exception) -> Finding:
    """Returns what casts doubt on a result because something of it could not be checked."""
    text = f"{what[:1].upper()}{what[1:]} could not be made: {type(error).__name__}."
    return Finding.of(NOT_CHECKED, "flag", text, Evidence(what="the error", value=str(error)))


def run_checks_apart(evidence: RunEvidence, checks: Iterable[CheckFunction]) -> list[Finding]:
    """Makes checks in a process of their own, because of what they read. A check that ends it, or reaches its limits,
    is a finding, and the checks after it are made in another process.

    Raises: As `run_checks`.
    """
    found, waiting = list[Finding](), list(checks)
    limits = (PATIENCE * CPU_S, min(MOST_MEMORY, spare_memory()), CPU_S)
    while waiting:
        names = [f"{check.__module__}:{check.__name__}" for check in waiting]
        try:
            read = read_apart(
                "a2rl.validity.checks", [str(evidence.run.root), *names], evidence.settings, keys_message({}), *limits
            )
            if read.is_machines:
                raise InfrastructureError(f"this machine could not make the checks of the run: {read.problem}")
            for line in read.output.splitlines():
                found += FINDINGS.validate_json(line)
                waiting.pop(0)
            error: Exception = InfrastructureError(read.problem or "it said nothing")
        except OSError as failure:
            raise machine_failure("make the checks of the run", failure) from failure
        except ValueError as failure:
            error = failure
        if waiting:
            found.append(could_not_check(f"the check {waiting.pop(0).__name__}", error))
    return found


def main() -> None:
    """Makes the checks in the arguments."""
    receive_keys(sys.stdin)
    folder, *names = sys.argv[1:]
    evidence = RunEvidence(RunDir(Path(folder)), Settings.load())
    try:
        for module, _, check in (name.partition(":") for name in names):
            found = run_checks(evidence, [getattr(import_module(module), check)])
            sys.stdout.write(f"{FINDINGS.dump_json(found).decode()}\n")
            sys.stdout.flush()
    except (InfrastructureError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in MACHINE_ERRORS:
            raise
        sys.stderr.write(f"{error}\n")
        sys.exit(OF_MACHINE)


if __name__ == "__main__":
    main()
