"""An independent audit of a run or of a bundle: every check, the validity with its evidence, and grading anew."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from a2rl.bundle.form import CODE, HIDDEN, LEDGER, MAX_BYTES, RUN, Index
from a2rl.bundle.unpack import unpack
from a2rl.core.errors import A2rlError, InterruptedByUserError, UsageError
from a2rl.core.settings import Settings
from a2rl.grading.progress import OnProgress, ignore_progress
from a2rl.grading.regrade import Regrade, regrade, regrade_baseline
from a2rl.models.base_model import model_digest
from a2rl.recording.code_history import import_history
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.verify import NOTHING, Away, Check, Trust, verify_run
from a2rl.run.directory import RunDir
from a2rl.run.inputs import find_base_model, how_to_get
from a2rl.run.ledger import Row, rebuild
from a2rl.run.records import GradeRecord, SetupRecord
from a2rl.validity.finding import Validity
from a2rl.validity.record import read_validity

SHARED = (".venv-vllm", "a2rl", "agents", "flows", "models", "params.yaml", "stages", "tasks")
"""What an unpacked run takes from the reader's own checkout."""
SOUND, UNSOUND, NOT_DONE, FLAGGED, VOID, DIFFERENT = 0, 1, 2, 3, 4, 5
"""The exit codes of `a2rl audit`; NOT_DONE is that of every command that could not do what was asked."""
RESULT, BASE_MODEL = "the checkpoint that counts", "the base model"


class Audit(BaseModel):
    """What an audit found."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    checks: tuple[Check, ...]
    validity: Validity | None
    """None: it was not decided, or its record cannot be read."""
    regrades: tuple[Regrade, ...] = Field(default=())
    not_regraded: dict[str, str] = Field(default_factory=dict)
    """What could not be graded anew, although that was asked, and why."""

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
        if RESULT in self.not_regraded:
            return NOT_DONE
        word = self.validity.word if self.validity else "flagged"
        return {"valid": SOUND, "flagged": FLAGGED}.get(word, VOID)


def audit(
    run: RunDir,
    settings: Settings,
    trust: Trust,
    tracker: Tracker | None,
    grades_anew: bool = False,
    away: Away = NOTHING,
    on_progress: OnProgress = ignore_progress,
) -> Audit:
    """Audits a run.

    Args:
        run: The run.
        settings: The settings of the checkout that the run is in.
        trust: Whom the reader trusts.
        tracker: MLflow; None if it is not here.
        grades_anew: Whether to grade the checkpoint that counts, and the base model, again.
        away: What is known not to be here.
        on_progress: Called with how far a grade is.

    Returns:
        All that was found. What could not be graded anew is named in it; the checks do not depend on that.

    Raises:
        InterruptedByUserError: The user stopped it.
    """
    checks = verify_run(run, tracker, trust, away)
    again: dict[str, Callable[[], Regrade]] = {
        RESULT: lambda: _regraded_result(run, settings, on_progress),
        BASE_MODEL: lambda: _regraded_baseline(run, settings, away, on_progress),
    }
    regrades, problems = _regraded(again) if grades_anew and _has_result(run) else ((), {})
    return Audit(run_id=run.id, checks=tuple(checks), validity=_validity(run), regrades=regrades, not_regraded=problems)


def _regraded(again: Mapping[str, Callable[[], Regrade]]) -> tuple[tuple[Regrade, ...], dict[str, str]]:
    """Grades anew what can be; returns the results, and why the others have none."""
    regrades: list[Regrade] = []
    problems: dict[str, str] = {}
    for what, grade in again.items():
        try:
            regrades.append(grade())
        except InterruptedByUserError:
            raise
        except A2rlError as error:
            problems[what] = str(error)
    return tuple(regrades), problems


def _has_result(run: RunDir) -> bool:
    try:
        record = run.read("grade", GradeRecord)
    except A2rlError:
        return False  # the check of the records says why
    return record is not None and record.final is not None


def _regraded_result(run: RunDir, settings: Settings, on_progress: OnProgress) -> Regrade:
    """Grades the checkpoint that counts again.

    Raises:
        A2rlError: It cannot be graded here.
    """
    _require_base_model(run)
    return regrade(run, settings, on_progress=on_progress)


def _regraded_baseline(run: RunDir, settings: Settings, away: Away, on_progress: OnProgress) -> Regrade:
    """Grades the base model again, if what has its name here is that of the run.

    Raises:
        A2rlError: It cannot be graded here.
    """
    base = _require_base_model(run)
    if away.base_model and model_digest(base) != run.need("setup", SetupRecord).model_digest:
        raise UsageError(f"what is called {run.spec.model} here is another model")
    return regrade_baseline(run, settings, on_progress)


def _require_base_model(run: RunDir) -> Path:
    """Returns the folder of the base model, which also says how everything that was trained from it is computed.

    Raises:
        UsageError: It is not on this machine.
    """
    if (base := find_base_model(run)) is None:
        raise UsageError(f"the base model {run.spec.model} is not on this machine{how_to_get(run.spec.model)}")
    return base


def _validity(run: RunDir) -> Validity | None:
    try:
        return read_validity(run)
    except A2rlError:
        return None  # the check of the records says why


class Opened(BaseModel):
    """A bundle that was unpacked into a checkout of its own."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    run: RunDir
    settings: Settings
    index: Index
    away: Away


@contextmanager
def opened_bundle(bundle: Path, settings: Settings, max_bytes: int = MAX_BYTES) -> Iterator[Opened]:
    """Unpacks a bundle beside links to the reader's code; all of it is removed at the end.

    Raises:
        UsageError: It is not a bundle, or is damaged.
        InfrastructureError: The disk or git failed.
    """
    with tempfile.TemporaryDirectory(prefix="a2rl-audit-") as scratch:
        unpacked, root = Path(scratch) / "unpacked", Path(scratch) / "checkout"
        index = unpack(bundle, unpacked, max_bytes)
        root.mkdir()
        for name in SHARED:
            if (settings.root / name).exists():
                (root / name).symlink_to(settings.root / name)
        run = RunDir(root / "runs" / index.run_id)
        run.root.parent.mkdir()
        (unpacked / RUN).rename(run.root)
        _restore(run, index)
        here = Settings(root, settings.environ)
        if (unpacked / HIDDEN).is_dir():
            data = here.data(index.task, index.variant)
            data.mkdir(parents=True)
            (unpacked / HIDDEN).rename(data / "hidden")
        away = Away(frozenset(index.weights_away), True, frozenset(index.left_out))
        yield Opened(run=run, settings=here, index=index, away=away)


def _restore(run: RunDir, index: Index) -> None:
    """Makes the ledger and the code's repository from their safe forms."""
    if LEDGER not in index.files:
        raise UsageError("the bundle has no ledger")
    lines = run.root / Path(LEDGER).name
    try:
        rows = [Row(*json.loads(line)) for line in lines.read_bytes().splitlines()]
        rebuild(run.ledger.path, rows)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"the ledger in the bundle cannot be read: {error}") from error
    lines.unlink()
    if CODE in index.files:
        packed = run.root / Path(CODE).name
        import_history(packed, run.code)
        packed.unlink()
