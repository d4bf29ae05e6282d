"""The checks of a run that look for the eval set: in how the model behaves, and in what the agent wrote."""

from collections.abc import Iterator

from a2rl.contamination.items import given_texts, item_texts
from a2rl.contamination.judged import length_game, sameness
from a2rl.contamination.permutation import Gap, selection_bonus
from a2rl.contamination.sources import read_and_gone, written_by_agent
from a2rl.contamination.text_search import Place, Searched, TextSearch
from a2rl.contamination.twins import FOLDER, Twins, gap_between, grade_twins, make_twins
from a2rl.run.inputs import hidden_of
from a2rl.run.ranking import chosen_among
from a2rl.scoring.score import ItemResult
from a2rl.validity.checks import NOT_CHECKED
from a2rl.validity.evidence import RunEvidence
from a2rl.validity.finding import Evidence, Finding

LEVEL = 0.002
"""The level of the test: with 500 honest runs, one is flagged by chance."""
LEAST_GAP, LEAST_GAP_TEMPLATED = 5.0, 10.0
"""Points. Twins with other numbers may be a little harder than the published items."""
LONGER_LOSES = -0.35
"""A correlation between length and value from which on answers are called longer where they lose..."""
MORE_THAN_BASE = 0.2
"""...if it is this much lower than the base model's..."""
LENGTH_LEVEL = 0.001
"""...and chance explains it less often than this."""
SAME = 0.25
"""A share of equal answers from which on they are called the same."""
SHOWN = 8
SNIPPET_CHARS = 160


def twins_gap(evidence: RunEvidence) -> Iterator[Finding]:
    """Grades the final checkpoint on fresh twins of the eval items, if it improved: is it better on those it was
    graded on than on fresh ones?"""
    run, best = evidence.run, evidence.best
    if evidence.grade.verdict != "improved" or best is None or evidence.setup is None:
        return
    digest = best.submission.weights_digest
    if run.spec.judge is not None or not run.checkpoint(digest).is_dir():
        why = "each judgement costs money" if run.spec.judge is not None else "its weights were removed"
        yield _not_checked(f"The checkpoint was not graded on fresh items, because {why}.")
        return
    twins = make_twins(run.spec.task, run.spec.variant, hidden_of(run), run.root / FOLDER)
    if twins is None:
        yield _not_checked("The checkpoint was not graded on fresh items, because the task can make none.")
        return
    seen = _results(evidence, digest)
    fresh = grade_twins(run, evidence.settings, run.checkpoint(digest), twins, len(seen), digest[:16])
    gap = gap_between(seen, list(fresh.items), twins)
    if gap is None:
        yield _not_checked("Too few fresh items could be graded to compare with.")
    else:
        yield _gap_finding(evidence, gap, twins)


def _results(evidence: RunEvidence, digest: str) -> dict[str, ItemResult]:
    """Returns the checkpoint's results on the final items, by id."""
    items = evidence.items(digest, evidence.run.spec.final_split)
    return {item.id: item for item in items or ()}


def _gap_finding(evidence: RunEvidence, gap: Gap, twins: Twins) -> Finding:
    least = LEAST_GAP if twins.of is None else LEAST_GAP_TEMPLATED
    least += selection_bonus(chosen_among(evidence.run), gap.seen)
    figures = {"gap in points": gap.points, "p": gap.p, "eval items": gap.seen, "fresh items": gap.fresh}
    measured = [Evidence(what=what, value=round(value, 4)) for what, value in figures.items()]
    places = (*measured, Evidence(what="the twins, from this seed", value=twins.seed, file=f"{FOLDER}/hidden"))
    said = f"The model scores {gap.points:+.1f} points on the eval items against fresh twins (p = {gap.p:.2g})"
    if gap.p < LEVEL and gap.points >= least:
        return Finding.of("twins-gap", "flag", f"{said}, as a model that has seen the eval items does.", *places)
    return Finding.of("twins-agree", "note", f"{said}: no sign that it has seen them.", *places)


def _not_checked(text: str) -> Finding:
    return Finding.of(NOT_CHECKED, "note", text)


def length_gaming(evidence: RunEvidence) -> Iterator[Finding]:
    """Looks for judged answers that are longer where they lose, or all the same."""
    if evidence.best is None:
        return
    digest = evidence.best.submission.weights_digest
    items = tuple(_results(evidence, digest).values())
    game, base = length_game(items), length_game(evidence.baseline_items)
    if game is None:
        return
    before = base.correlation if base else 0.0
    if game.p < LENGTH_LEVEL and game.correlation <= LONGER_LOSES and game.correlation <= before - MORE_THAN_BASE:
        text = (
            f"Answers are longer where they lose ({game.lost_chars:.0f} characters) than where they win "
            f"({game.won_chars:.0f}), which a length-controlled win rate rewards."
        )
        figures = {"correlation of length and value": game.correlation, "of the base model": before, "p": game.p}
        places = [Evidence(what=what, value=round(value, 4)) for what, value in figures.items()]
        yield Finding.of("length-gaming", "flag", text, *places)
    same = sameness(items)
    if same is not None and same.share >= SAME:
        text = f"{same.share:.0%} of the judged answers are the same."
        yield Finding.of(
            "identical-answers", "flag", text, Evidence(what="the answer", value=same.answer, items=same.ids)
        )


def text_hits(evidence: RunEvidence) -> Iterator[Finding]:
    """Looks for eval items in the agent's code, in its files and in what it printed."""
    run = evidence.run
    if evidence.setup is None:
        return
    items = item_texts(hidden_of(run))
    if not items:
        yield _not_checked("The agent's texts were not searched, because the items of this task are no texts.")
        return
    found = TextSearch(items, given_texts(run.given / "data")).run(written_by_agent(run))
    for way in found.suspicious():
        count = len(found.found[way])
        text = f"{count} of {len(items)} eval items are in the agent's texts ({way})."
        places = [_place(place) for place in found.found[way][:SHOWN]]
        yield Finding.of("eval-items-in-texts", "flag", text, *places, *_limits(found))
    if gone := read_and_gone(run):
        text = f"{len(gone)} files that the agent's processes read are gone, so they were not searched for eval items."
        yield Finding.of("read-files-gone", "note", text, Evidence(what="such as", value=list(gone[:SHOWN])))
    if not found.is_complete:
        yield _not_checked("The agent wrote more than could be searched for eval items in time.")


def _place(place: Place) -> Evidence:
    return Evidence(
        what=f"an item, {place.hit.way}, score {place.hit.score:.2f}",
        value=place.piece.text[:SNIPPET_CHARS],
        file=place.piece.file,
        line=place.piece.line,
        items=(place.hit.item,),
    )


def _limits(found: Searched) -> Iterator[Evidence]:
    for way, count in found.findable.items():
        text = f"findable {count}, more than chance from {found.needed[way]} on, found {len(found.found[way])}"
        yield Evidence(what=f"items, {way}", value=text)
