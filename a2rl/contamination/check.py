"""The checks of a run that look for the eval set in what the agent wrote, and for answers that please a judge."""

from collections.abc import Iterator

from a2rl.contamination.fresh_check import not_checked, results_of
from a2rl.contamination.items import given_texts, item_texts
from a2rl.contamination.judged import length_game, sameness
from a2rl.contamination.sources import read_and_gone, written_by_agent
from a2rl.contamination.text_search import Place, Searched, TextSearch
from a2rl.run.inputs import hidden_of
from a2rl.validity.checks import NOT_CHECKED
from a2rl.validity.evidence import RunEvidence
from a2rl.validity.finding import Evidence, Finding

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


def length_gaming(evidence: RunEvidence) -> Iterator[Finding]:
    """Looks for judged answers that are longer where they lose, or all the same."""
    if evidence.best is None:
        return
    digest = evidence.best.submission.weights_digest
    items = tuple(results_of(evidence, digest).values())
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
        yield not_checked("The agent's texts were not searched, because the items of this task are no texts.")
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
        text = "The agent wrote more text than is searched for eval items, so a part was not searched."
        yield Finding.of(NOT_CHECKED, "flag", text)  # or an agent that writes enough would escape the search


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
