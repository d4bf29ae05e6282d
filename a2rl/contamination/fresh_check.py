"""The checks of a run that compare the eval items with fresh ones: does the model know those better that count?

Both look only at a result that is an improvement, and at the same twins.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from a2rl.contamination.gold_answers import MOST, Asked, asked_items, measure
from a2rl.contamination.twins import (
    FOLDER,
    Gap,
    Shared,
    Twins,
    gap_between,
    grade_twins,
    make_twins,
    selection_bonus,
    shared_items,
    twins_graded,
)
from a2rl.grading.devices import devices_of
from a2rl.grading.model_process import ModelSize
from a2rl.linux.gpus import CPU
from a2rl.run.gpu_share import check_gpus
from a2rl.run.inputs import hidden_of
from a2rl.run.ranking import chosen_among
from a2rl.scoring.score import ItemResult
from a2rl.validity.checks import NOT_CHECKED, RunEvidence
from a2rl.validity.record import Evidence, Finding

LEVEL = 0.002
"""The level of each test: with 500 honest runs, one is flagged by chance."""
LEAST_GAP, LEAST_GAP_TEMPLATED = 5.0, 10.0
"""Points. Twins with other numbers may be a little harder than the published items."""
LEAST_GAIN, LEAST_GAIN_TEMPLATED = 0.02, 0.05
"""Nats for each character of a gold answer."""


class Compared(NamedTuple):
    """An improved checkpoint, the eval items that made its result, and fresh ones."""

    digest: str
    checkpoint: Path
    hidden: Path
    twins: Twins
    shared: Shared
    seen: dict[str, ItemResult]
    """The results on the eval items, by id."""


def twins_gap(evidence: RunEvidence) -> Iterator[Finding]:
    """Grades the final checkpoint on fresh twins of the eval items, if it improved: is it better on those it was
    graded on than on fresh ones?"""
    what = "The checkpoint was not graded on fresh items"
    if evidence.grade.verdict == "improved" and evidence.run.spec.judge is not None:
        yield not_checked(f"{what}, because each judgement costs money.")
        return
    found = _compared(evidence)
    if not isinstance(found, Compared):
        yield from (not_checked(f"{what}, because {why}.") for why in found)
        return
    graded = grade_twins(
        evidence.run, evidence.settings, found.checkpoint, found.twins, len(found.seen), found.digest[:16]
    )
    seen = _values([item for each, item in found.seen.items() if each not in found.shared.seen])
    fresh = _values([item for item in graded.items if item.id not in found.shared.fresh])
    if (gap := gap_between(seen, fresh, found.twins.of)) is None:
        yield not_checked("Too few fresh items could be graded to compare with.")
        return
    least = LEAST_GAP if found.twins.of is None else LEAST_GAP_TEMPLATED
    least += selection_bonus(chosen_among(evidence.run), gap.seen)
    sentence = f"The model scores {gap.points:+.1f} points on the eval items against fresh twins (p = {gap.p:.2g})"
    places = _places(gap, found, {"gap in points": gap.points})
    if gap.p < LEVEL and gap.points >= least:
        yield Finding.of("twins-gap", "flag", f"{sentence}, as a model that has seen the eval items does.", *places)
    else:
        yield Finding.of("twins-agree", "note", f"{sentence}: no sign that it has seen them.", *places)


def log_probability_gap(evidence: RunEvidence) -> Iterator[Finding]:
    """Reads the gold answers with the final checkpoint and the base model, if it improved: has training gained more on
    those of the eval items than on those of fresh twins?"""
    what = "The log-probabilities of gold answers were not compared with those of fresh ones"
    found = _compared(evidence)
    if not isinstance(found, Compared):
        yield from (not_checked(f"{what}, because {why}.") for why in found)
        return
    run, settings = evidence.run, evidence.settings
    seen, fresh = _asked(evidence, found)
    device = devices_of(check_gpus(run, settings).all)[0]
    if not seen or not fresh:
        yield not_checked(f"{what}, because the answers of this task are not single texts.")
        return
    if why := _no_room(evidence, device):
        yield not_checked(f"{what}, because {why}.")
        return
    models = (found.checkpoint, evidence.base_model)
    gap = gap_between(*measure(models, seen, fresh, run.root / FOLDER, settings, device), found.twins.of)
    if gap is None:
        yield not_checked(f"{what}, because there are too few.")
        return
    sentence = (
        f"Training made gold answers of eval items likelier by {gap.difference:+.3f} nats a character than those of "
        f"fresh twins (p = {gap.p:.2g})"
    )
    places = _places(gap, found, {"gap in nats a character": gap.difference})
    least = LEAST_GAIN if found.twins.of is None else LEAST_GAIN_TEMPLATED
    if gap.p < LEVEL and gap.difference >= least:
        yield Finding.of("log-probability-gap", "flag", f"{sentence}, as if it had learned them by heart.", *places)
    else:
        yield Finding.of("log-probabilities-agree", "note", f"{sentence}: no sign that it has learned them.", *places)


def _compared(evidence: RunEvidence) -> Compared | tuple[str, ...]:
    """Returns what can be compared; else why it cannot, or nothing if the result is no improvement."""
    run, best = evidence.run, evidence.best
    if evidence.grade.verdict != "improved" or best is None or evidence.setup is None:
        return ()
    digest, hidden = best.submission.weights_digest, hidden_of(run)
    if not run.checkpoint(digest).is_dir():
        return ("its weights were removed",)
    twins = make_twins(run.spec.task, run.spec.variant, hidden, run.root / FOLDER)
    if twins is None:
        return ("the task can make none",)
    shared = shared_items(run.spec.task, hidden, twins)
    return Compared(digest, run.checkpoint(digest), hidden, twins, shared, results_of(evidence, digest))


def _no_room(evidence: RunEvidence, device: str) -> str:
    """Returns why a device cannot hold the model; empty if it can, or if nothing is known against it."""
    if device == CPU:
        return ModelSize.of(evidence.base_model).lack_of_memory
    return "the model needs several GPUs" if evidence.run.spec.gpus_for_one > 1 else ""


def _asked(evidence: RunEvidence, found: Compared) -> tuple[list[Asked], list[Asked]]:
    """Returns the eval items and the twins as a model is asked them, at most MOST of each."""
    run, root = evidence.run, evidence.settings.root
    fresh = twins_graded(run, found.twins, len(found.seen))
    ids = [each for each in found.seen if each not in found.shared.seen][:MOST]
    new = [each for each in fresh if each not in found.shared.fresh][:MOST]
    return (
        asked_items(run.spec, found.checkpoint, found.hidden, ids, root),
        asked_items(run.spec, found.checkpoint, found.twins.hidden, new, root),
    )


def results_of(evidence: RunEvidence, digest: str) -> dict[str, ItemResult]:
    """Returns a checkpoint's results on the final items, by id."""
    items = evidence.items(digest, evidence.run.spec.final_split)
    return {item.id: item for item in items or ()}


def _values(items: Sequence[ItemResult]) -> dict[str, float]:
    """Returns the values of the items that could be judged, by id."""
    return {item.id: item.value for item in items if item.verdict != "errored"}


def _places(gap: Gap, found: Compared, figure: dict[str, float]) -> tuple[Evidence, ...]:
    figures = figure | {"p": gap.p, "eval items": gap.seen, "fresh items": gap.fresh}
    measured = [Evidence(what=what, value=round(value, 4)) for what, value in figures.items()]
    return (*measured, Evidence(what="the twins, from this seed", value=found.twins.seed, file=f"{FOLDER}/hidden"))


def not_checked(text: str) -> Finding:
    """Returns a note on a check that could not be made."""
    return Finding.of(NOT_CHECKED, "note", text)
