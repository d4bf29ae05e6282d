"""Checks of the scores: the items are those of the split, and the scores follow from them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from a2rl.core.files import file_digest, read_jsonl, read_model
from a2rl.grading.baseline import BaselineKey
from a2rl.grading.job import GradeResult, ids_of_run, score_items
from a2rl.results.verify.check import require, same
from a2rl.run.directory import RunDir
from a2rl.run.events import BaselineKnown, Graded, PrivateGraded
from a2rl.run.inputs import hidden_of, settings_of
from a2rl.run.records import BaselineRecord
from a2rl.scoring.score import ItemResult, TaskScore
from a2rl.task_api.contract import Split


def check_items(run: RunDir) -> None:
    """Recomputes each score from its items, which must be exactly those of the split."""
    for path, split, claimed, digest in _grade_files(run):
        require(file_digest(path) == digest, f"{path} was changed after grading")
        hidden = hidden_of(run)
        items = read_model(path, GradeResult).items
        require(
            [item.id for item in items] == ids_of_run(run.spec, hidden, split),
            f"{path} does not have the items of the {split} split",
        )
        recomputed = score_items(run.spec.task, hidden, items)
        require(
            same(recomputed.score, claimed.score),
            f"{path}: the items give {recomputed.score}, the ledger says {claimed.score}",
        )


def check_baseline(run: RunDir) -> None:
    """Recomputes the base model's scores, and compares its items with the stored baseline of the same key."""
    record, known = run.read("baseline", BaselineRecord), run.ledger.events(BaselineKnown)
    if record is None or not known:
        return
    spec, hidden, path = run.spec, hidden_of(run), run.baseline_items
    require(record.key == known[0].key, "the record's baseline has another key than the ledger's")
    require(known[0].items_digest == file_digest(path), f"{path} was changed after grading")
    items = read_model(path, GradeResult).items
    require(
        [item.id for item in items] == ids_of_run(spec, hidden, "all"),
        f"{path} does not have the items of the eval set",
    )
    scores: dict[Split, TaskScore | None] = {spec.public_split: known[0].public, "private": known[0].private}
    for split, claimed in scores.items():
        if claimed is not None:
            _check_baseline_split(run, items, split, claimed)
    parts: dict[Split, TaskScore] = {"all": record.total, "public": record.public, "private": record.private}
    for split, shown in parts.items():
        _check_baseline_split(run, items, split, shown)
    _check_stored(run, record.key, items)


def _check_baseline_split(run: RunDir, items: Sequence[ItemResult], split: Split, claimed: TaskScore) -> None:
    spec, hidden = run.spec, hidden_of(run)
    chosen = set(ids_of_run(spec, hidden, split))
    found = [item for item in items if item.id in chosen]
    recomputed = score_items(spec.task, hidden, found).score
    require(
        same(recomputed, claimed.score),
        f"{run.baseline_items}: the {split} items give {recomputed}, not {claimed.score}",
    )


def _check_stored(run: RunDir, key: str, items: Sequence[ItemResult]) -> None:
    """Compares the items with the baseline that is stored under this key, if there is one in this checkout."""
    for path in settings_of(run).baselines.glob("**/key.json"):
        if read_model(path, BaselineKey).key == key:
            rows = read_jsonl(path.parent / "items.jsonl")
            stored = {str(row["id"]): (row["verdict"], row["value"]) for row in rows}
            for item in items:
                require(
                    stored.get(item.id) == (item.verdict, item.value),
                    f"{run.baseline_items}: item {item.id} is not that of the stored baseline in {path.parent}",
                )


def _grade_files(run: RunDir) -> Iterator[tuple[Path, Split, TaskScore, str]]:
    for event in run.ledger.events(Graded):
        if event.items_digest:
            split = run.spec.public_split
            yield run.items(event.weights_digest, split), split, event.result, event.items_digest
    for final in run.ledger.events(PrivateGraded):
        yield run.items(final.weights_digest, "private"), "private", final.result, final.items_digest
