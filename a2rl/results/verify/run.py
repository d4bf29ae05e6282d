"""All checks of a run, in order, and whom a reader trusts besides the run's own files."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.anchor.signatures import Head, check_signatures, load_public_key
from a2rl.anchor.signing import SignedHistory
from a2rl.config.params import load_params
from a2rl.core.errors import InfrastructureError, IntegrityError, UsageError
from a2rl.core.files import digest_of, read_jsonl, read_text
from a2rl.core.settings import Settings
from a2rl.grading.submission_states import invalid_transition
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.verify.check import (
    NOTHING_ABSENT,
    Absent,
    CheckOutcome,
    NotCheckedError,
    check_baseline,
    check_checkpoints,
    check_code,
    check_files,
    check_inputs,
    check_items,
    check_report,
    made,
    require,
)
from a2rl.results.verify.records import check_draw, check_mlflow, check_records, check_validity
from a2rl.run.directory import RunDir
from a2rl.run.events import RunOpened
from a2rl.run.records import ExecuteRecord


class Trust(NamedTuple):
    """The keys and the heads that a reader trusts."""

    keys: frozenset[str] = frozenset()
    """The public keys whose signatures count. If there is one, the run must be signed."""
    history: SignedHistory | None = None
    """What this checkout's own key has signed."""
    published: tuple[Head, ...] = ()
    """Heads of the run that the reader knows from elsewhere, such as from time stamps."""


NOBODY = Trust()


def trust_of(settings: Settings, public_keys: Iterable[Path] = ()) -> Trust:
    """Returns whom a checkout trusts: the keys given here, or else those of params.yaml, and what its own key signed.

    Raises:
        UsageError: A key cannot be read.
    """
    params = load_params(settings.root).anchor
    paths = list(public_keys) or [settings.root / path for path in params.public_keys]
    history = SignedHistory.beside(settings.root / params.key) if params.key else None
    return Trust(frozenset(map(load_public_key, paths)), history if history and history.path.exists() else None)


def read_published(path: Path, run_id: str) -> tuple[Head, ...]:
    """Reads the published heads of a run from a file with one JSON object in each line.

    Raises:
        UsageError: The file cannot be read, or names no head of the run.
    """
    try:
        rows = [row for row in read_jsonl(path) if row.get("run") == run_id]
        heads = tuple(Head(seq=row["seq"], hash=row["hash"]) for row in rows)
    except (OSError, ValueError, KeyError, IntegrityError) as error:
        raise UsageError(f"{path} does not have published heads, one JSON object in each line: {error}") from error
    if not heads:
        raise UsageError(f"{path} has no head of run {run_id}")
    return heads


def verify_run(
    run: RunDir, tracker: Tracker | None, trust: Trust = NOBODY, absent: Absent = NOTHING_ABSENT
) -> list[CheckOutcome]:
    """Runs all checks of a run; the run is sound if none of them finds a problem.

    Args:
        tracker: MLflow; None if it is not here.
        trust: Whom the reader trusts.
        absent: What is known not to be here.
    """
    # A new object, so that the checks use what is on disk now and nothing that the caller has read before.
    run = RunDir(run.root)
    checks: list[tuple[str, Callable[[], str | None]]] = [
        ("the ledger's hash chain", lambda: _check_chain(run)),
        ("the ledger's heads are signed", lambda: _check_signed(run, trust)),
        ("the ledger has the heads that were published", lambda: _check_published(run, trust)),
        ("the settings are those the run was opened with", lambda: _check_spec(run)),
        ("the eval set follows from the draw that the run committed to", lambda: check_draw(run)),
        ("the base model and the data are those the run began with", lambda: check_inputs(run, absent)),
        ("every submission ends in exactly one way", lambda: _check_submissions(run)),
        ("checkpoints are the ones that were graded", lambda: check_checkpoints(run, absent)),
        ("the baseline is that of this base model and these items", lambda: check_baseline(run)),
        ("scores follow from the per-item results", lambda: check_items(run)),
        ("the records follow from the ledger", lambda: check_records(run)),
        ("the validity only became worse, and its findings are unchanged", lambda: check_validity(run)),
        ("files are those with which the run ended", lambda: check_files(run, absent)),
        ("the agent's code is that of its history", lambda: check_code(run)),
        ("the report is that of the run", lambda: check_report(run)),
        ("MLflow shows what the ledger says", lambda: check_mlflow(run, tracker)),
    ]
    return [made(what, check) for what, check in checks]


def _check_chain(run: RunDir) -> str:
    return f"{len(run.ledger.rows())} entries, head {run.ledger.verify()[:16]}"


def _check_signed(run: RunDir, trust: Trust) -> str:
    found = check_signatures(run, trust.keys)
    if not found:
        raise NotCheckedError("the run is not signed, so whoever can write its files could have rewritten all of them")
    if trust.history is not None:
        try:
            trust.history.known(run.id, run.ledger.rows())
        except InfrastructureError as error:
            return f"{found}; {error}"
    return found if trust.keys else f"{found}; nobody vouches for the key: give --public-key"


def _check_published(run: RunDir, trust: Trust) -> str:
    if not trust.published:
        raise NotCheckedError("none were given")
    hashes = {row.seq: row.hash for row in run.ledger.rows()}
    for head in trust.published:
        require(hashes.get(head.seq) == head.hash, f"entry {head.seq} is not the one that was published")
    return f"{len(trust.published)} heads"


def _check_spec(run: RunDir) -> str:
    opened = run.ledger.events(RunOpened)
    require(len(opened) == 1, "the ledger does not begin with one run")
    spec = run.spec
    try:
        written = json.loads(read_text(run.root / "spec.json"))  # as its version of a2rl wrote it
        digest = digest_of(written)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"spec.json has no digest: {error}") from error
    require(opened[0].spec_digest == digest, "spec.json was changed after the run began")
    require(spec.run_id == run.id, f"spec.json is that of run {spec.run_id}")
    unknown = sorted(_unknown(written, spec.model_dump(mode="json")))
    return f"this version of a2rl does not know {', '.join(unknown[:5])}" if unknown else ""


def _unknown(written: Any, known: Any, place: str = "") -> Iterator[str]:
    """Yields the settings that a file has and this version has not: `vllm.gpu_memory_utilization`."""
    if isinstance(written, dict) and isinstance(known, dict):
        for name, value in written.items():
            yield from _unknown(value, known[name], f"{place}{name}.") if name in known else (f"{place}{name}",)


def _check_submissions(run: RunDir) -> None:
    finished = run.read("execute", ExecuteRecord) is not None
    problem = invalid_transition(run.ledger.entries(), finished)
    require(not problem, problem)
