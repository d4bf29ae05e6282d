"""An independent audit of a run or of a bundle: every check, the validity with its evidence, and grading anew."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import Field

from a2rl.bundle.archive import CODE, HIDDEN, INDEX, LEDGER, MAX_BYTES, MAX_LEDGER_BYTES, RUN, Index, unpack
from a2rl.core.errors import (
    A2rlError,
    InfrastructureError,
    IntegrityError,
    InterruptedByUserError,
    MissingInputError,
    UsageError,
)
from a2rl.core.files import FrozenModel, read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading.outputs import OnProgress, ignore_progress
from a2rl.grading.regrade import Regrade, regrade, regrade_baseline
from a2rl.models.base_model import model_digest
from a2rl.recording.code_history import import_history
from a2rl.results.manifest import FILE as MANIFEST
from a2rl.results.manifest import read_manifest
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.verify import NOTHING_ABSENT, Absent, CheckOutcome, Trust, verify_run
from a2rl.run.directory import RunDir
from a2rl.run.inputs import OF_OTHERS, find_base_model, how_to_get
from a2rl.run.ledger import as_row
from a2rl.run.records import GradeRecord, SetupRecord
from a2rl.validity.record import Validity, Word, read_validity

SHARED = (
    ".venv-tasks", ".venv-vllm", "a2rl", "agents", "data/tasks", "flows", "models", "params.yaml", "stages", "tasks",
)  # fmt: skip
"""What an unpacked run takes from the reader's own checkout."""
SOUND, UNSOUND, NOT_DONE, FLAGGED, VOID, DIFFERENT = 0, 1, 2, 3, 4, 5
"""The exit codes of `a2rl audit`; NOT_DONE is that of every command that could not do what was asked."""
T = TypeVar("T")
RESULT, BASE_MODEL = "the checkpoint that counts", "the base model"


class Audit(FrozenModel):
    """What an audit found."""

    run_id: str
    checks: tuple[CheckOutcome, ...]
    validity: Validity | None
    """None: it was not decided, or its record cannot be read."""
    regrades: tuple[Regrade, ...] = Field(default=())
    not_regraded: dict[str, str] = Field(default_factory=dict)
    """What could not be graded anew, although that was asked, and why."""
    failed_here: bool = False
    """Whether this machine or the judge may be the reason, so that it may be tried again."""
    left_out: tuple[str, ...] = ()
    """What of the run is not here, whatever the reason: a result that cannot be checked in full is not valid."""

    @property
    def sound(self) -> bool:
        """Whether no check failed."""
        return not any(check.problem for check in self.checks)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: docs/audit.md."""
        if not self.sound:
            return UNSOUND
        if not all(each.is_same for each in self.regrades):
            return DIFFERENT
        if self.not_regraded:
            return NOT_DONE
        return {"valid": SOUND, "flagged": FLAGGED}.get(self.worth, VOID)

    @property
    def worth(self) -> Word:
        """What the result of a sound run is worth to a reader who has only what is here."""
        word = self.validity.word if self.validity else "flagged"
        return "flagged" if self.left_out and word == "valid" else word


def audit(run: RunDir, trust: Trust, tracker: Tracker | None, absent: Absent = NOTHING_ABSENT) -> Audit:
    """Makes all checks of a run; see `verify_run`."""
    checks = tuple(verify_run(run, tracker, trust, absent))
    # Without the list of files, nobody can say what is missing.
    lacks_list = _if_readable(lambda: read_manifest(run) is None, False)
    return Audit(
        run_id=run.id,
        checks=checks,
        validity=_if_readable(lambda: read_validity(run), None),
        left_out=(*sorted(absent.files), *([MANIFEST] if lacks_list else [])),
    )


def _if_readable(read: Callable[[], T], otherwise: T) -> T:
    """Returns what can be read of a run; if it cannot be read, a check says why."""
    try:
        return read()
    except A2rlError:
        return otherwise


def graded_anew(
    found: Audit,
    run: RunDir,
    settings: Settings,
    absent: Absent = NOTHING_ABSENT,
    on_progress: OnProgress = ignore_progress,
) -> Audit:
    """Grades the checkpoint that counts, and the base model, again; a run without a result stays as it is.

    Returns:
        With the comparison. What could not be graded anew is named in it; the checks do not depend on that.

    Raises:
        InterruptedByUserError: The user stopped it.
    """
    again: dict[str, Callable[[], Regrade]] = {
        RESULT: lambda: regrade(run, settings, on_progress=on_progress),
        BASE_MODEL: lambda: regrade_baseline(run, settings, on_progress),
    }
    regrades: list[Regrade] = []
    problems: dict[str, A2rlError] = {}
    record = _if_readable(lambda: run.read("grade", GradeRecord), None)
    for what, grade in again.items() if record and record.final else ():
        try:
            _require_base_model(run, absent)
            regrades.append(grade())
        except InterruptedByUserError:
            raise
        except A2rlError as error:
            problems[what] = error
    known = {
        "regrades": tuple(regrades),
        "not_regraded": {what: str(error) for what, error in problems.items()},
        "failed_here": any(isinstance(error, InfrastructureError) for error in problems.values()),
    }
    return found.model_copy(update=known)


def _require_base_model(run: RunDir, absent: Absent) -> None:
    """Requires the base model, which also says how everything that was trained from it is computed.

    Raises:
        MissingInputError: It is not on this machine, or what has its name is another model.
    """
    if (base := find_base_model(run)) is None:
        raise MissingInputError(f"the base model {run.spec.model} is not on this machine{how_to_get(run.spec.model)}")
    if absent.base_model and model_digest(base) != run.need("setup", SetupRecord).model_digest:
        raise MissingInputError(f"what is called {run.spec.model} here is another model")


class OpenBundle(NamedTuple):
    """A bundle that was unpacked into a checkout of its own."""

    run: RunDir
    settings: Settings
    absent: Absent


def open_bundle(bundle: Path, scratch: Path, settings: Settings, max_bytes: int = MAX_BYTES) -> OpenBundle:
    """Unpacks a bundle into an empty folder, beside links to the reader's code.

    Raises:
        UsageError: It is not a bundle, or is damaged.
        InfrastructureError: The disk or git failed.
    """
    unpacked, root = scratch / "unpacked", scratch / "checkout"
    index = unpack(bundle, unpacked, max_bytes)
    root.mkdir()
    for name in SHARED:
        if (settings.root / name).exists():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).symlink_to(settings.root / name)
    opened = _opened(index, root, settings)
    if not (unpacked / RUN).is_dir():
        raise UsageError("the bundle has no run")
    opened.run.root.parent.mkdir()
    (unpacked / RUN).rename(opened.run.root)
    _restore(opened.run, index)
    if (unpacked / HIDDEN).is_dir():
        data = opened.settings.data(index.task, index.variant)
        data.mkdir(parents=True)
        (unpacked / HIDDEN).rename(data / "hidden")
    write_model(scratch / INDEX, index)
    return opened


def reopen_bundle(scratch: Path, settings: Settings) -> OpenBundle:
    """Returns a bundle that was unpacked into this folder before."""
    return _opened(read_model(scratch / INDEX, Index), scratch / "checkout", settings)


def _opened(index: Index, root: Path, settings: Settings) -> OpenBundle:
    absent = Absent(frozenset(index.weights_away), True, frozenset(index.left_out))
    return OpenBundle(RunDir(root / "runs" / index.run_id), Settings(root, settings.environ), absent)


def _restore(run: RunDir, index: Index) -> None:
    """Makes the ledger and the code's repository from their safe forms."""
    if LEDGER not in index.files:
        raise UsageError("the bundle has no ledger")
    lines = run.root / Path(LEDGER).name
    if index.files[LEDGER].bytes > MAX_LEDGER_BYTES:
        raise UsageError(f"the ledger in the bundle has more than {MAX_LEDGER_BYTES:,} bytes")
    try:
        run.ledger.restore([as_row(json.loads(line)) for line in lines.read_bytes().splitlines()])
    except (ValueError, TypeError, RecursionError, IntegrityError) as error:
        raise UsageError(f"the ledger in the bundle cannot be read: {error}") from error
    lines.unlink()
    if CODE in index.files:
        packed = run.root / Path(CODE).name
        try:
            import_history(packed, run.code)
        except IntegrityError as error:
            raise UsageError(f"the history of the code in the bundle is damaged: {error}") from error
        packed.unlink()
    (run.root / OF_OTHERS).touch()
