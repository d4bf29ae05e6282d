"""The phases of a program: what trained, or made a checkpoint in another way, with the signs that show it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from a2rl.labels.routes import UNKNOWN, Chain, Evidence, Route, RouteLabel
from a2rl.labels.rules import REWARD_MODELS, Sign, route_of_trainer, rule_of, trainer_route
from a2rl.labels.traces import LOADED, Work

MAX_EVIDENCE = 5
NO_MERGE = ("merge_and_unload", LOADED)
TRACED = 0.95
"""The confidence if a library's trainer was traced."""


class Phase(NamedTuple):
    """A part of a program's work."""

    route: Route
    confidence: float
    evidence: Evidence
    signs: frozenset[Sign] = frozenset()
    """What was seen of it and before it."""
    is_loop: bool = False
    """Whether the program computes the loss itself, rather than a trainer of a library."""


def traced_phase(work: Work, code: Sequence[Phase], file: str, commit: str, at_s: float | None) -> Phase | None:
    """Returns what a program did, from what it noted itself and the signs in its code; None if nothing was trained.

    Args:
        work: What was noted.
        code: The phases that the code shows.
        file: The file of the code where it trained.
        commit: The commit of the code.
        at_s: When it began, in seconds of the budget clock.
    """
    place = Evidence(source="trace", what="", commit=commit if file else "", file=file, line=work.place.line, at_s=at_s)

    def phase(route: Route, confidence: float, why: str, is_loop: bool = False) -> Phase:
        return Phase(route, confidence, place.model_copy(update={"what": why}), frozenset(signs), is_loop)

    here = [each for each in code if each.evidence.file == file]
    nearest = min(here, key=lambda each: abs(each.evidence.line - work.place.line), default=None)
    signs = set(nearest.signs if nearest else ()) - {Sign.GENERATES}
    if work.turns or work.generated_before:
        signs.add(Sign.GENERATES)
    if work.merge:
        # An adapter that is merged into its own model is no merge of checkpoints, and neither is a choice among them.
        is_merge = work.merge not in NO_MERGE or (work.merge == LOADED and any(each.route == "merge" for each in code))
        return phase("merge", TRACED if work.merge != LOADED else 0.85, work.merge) if is_merge else None
    if not work.steps or any(name.rpartition(".")[2] in REWARD_MODELS for name in work.classes):
        return None
    named = [(route, name) for name in work.classes if (route := trainer_route(name)) is not None]
    if named and not (work.has_own_loss and nearest and nearest.is_loop):
        route, name = named[0]
        why = f"{name.rpartition('.')[2]}, {work.steps} steps"
        return phase(route_of_trainer(route, signs, work.settings), TRACED, why)
    rule = rule_of(signs)
    return phase(rule.route, rule.traced, f"{rule.why}: {work.steps} steps, {work.generations} generations", True)


def chain_of(phases: Iterable[Phase]) -> Chain:
    """Returns the chain of phases that are in order: neighbours of one route are one label.

    Copies do not count beside training, nor do phases of an unknown route beside known ones.
    """
    groups: list[list[Phase]] = []
    found = list(phases)
    for phase in [each for each in found if each.route != "unknown"] or found:
        if groups and groups[-1][0].route == phase.route:
            groups[-1].append(phase)
        else:
            groups.append([phase])
    groups = [group for group in groups if group[0].route != "copy"] or groups[:1]
    return tuple(_label(group) for group in groups) or (UNKNOWN,)


def _label(group: list[Phase]) -> RouteLabel:
    evidence = tuple(phase.evidence for phase in group[:MAX_EVIDENCE])
    return RouteLabel(route=group[0].route, confidence=max(phase.confidence for phase in group), evidence=evidence)
