"""The two examples that ReAct shows before a game, by kind of game.

repaired: written here by the exploring expert on two training games of each kind, with thoughts where ReAct has them.
faithful: the published ones (ysymyth/ReAct, prompts/alfworld_3prompts.json), data held against their digest.
Their `put X in/on Y` is no command of the games that alfworld 0.4 downloads: a model that imitates them wins only the
games in which nothing has to be put anywhere, 18 of the 134.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from a2rl.errors import InfrastructureError, IntegrityError
from tasks.alfworld.alfred import Game, Play
from tasks.alfworld.alfred.expert import Expert, Goal, play_out, read_goal
from tasks.alfworld.alfred.transcript import transcript

Examples = Mapping[str, Sequence[str]]
"""By kind of game: the texts of games that were won."""

REACT_FILE = "react_prompts.json"
REACT_URL = (
    "https://raw.githubusercontent.com/ysymyth/ReAct/6bdb3a1fd38b8188fc7ba4102969fe483df8fdc9"
    "/prompts/alfworld_3prompts.json"
)
REACT_DIGEST = "a10976b4ae99f4802aa9e621933bb71065ae103f2bd273a24466ab1005fbc45a"
REACT_NAMES = {
    "pick_and_place_simple": "put",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
    "look_at_obj_in_light": "examine",
    "pick_two_obj_and_place": "puttwo",
}
LONGEST_EXAMPLE = 14
"""Commands; ReAct's examples are of about that length."""


def framed(examples: Sequence[str]) -> str:
    """What comes before a game; nothing where there are no examples. The frame is the reference's (eval.py)."""
    if not examples:
        return ""
    return (
        "Interact with a household to solve a task. Here are two examples.\n"
        + "".join(examples)
        + "\nHere is the task.\n"
    )


def repaired(games: Iterable[Game]) -> Examples:
    """The first two games of each kind that the expert wins quickly, one thing each."""
    found: dict[str, list[str]] = {}
    things: set[tuple[str, str]] = set()
    for game in games:
        texts, goal = found.setdefault(game.kind, []), read_goal(game.goal_text)
        if len(texts) == 2 or (game.kind, goal.thing) in things:
            continue
        play = Play(game)
        turns = play_out(play, Expert(), LONGEST_EXAMPLE)
        if play.won:
            things.add((game.kind, goal.thing))
            texts.append(transcript(play.intro, _with_thoughts(goal, turns)) + "\n")
    return found


def faithful(mirror: Path | None) -> Examples | None:
    """ReAct's own examples, the two that the reference shows, in its order; None where a local mirror lacks them.

    Raises:
        InfrastructureError: without a mirror, and the network is down.
        IntegrityError: the file is not the published one.
    """
    if mirror is not None and not (mirror / REACT_FILE).is_file():
        return None
    data = (mirror / REACT_FILE).read_bytes() if mirror is not None else _fetched()
    if hashlib.sha256(data).hexdigest() != REACT_DIGEST:
        raise IntegrityError(f"{mirror / REACT_FILE if mirror else REACT_URL} is not the published file")
    published = json.loads(data)
    return {kind: [published[f"react_{name}_{n}"] for n in (1, 0)] for kind, name in REACT_NAMES.items()}


def _fetched() -> bytes:
    import requests

    try:
        reply = requests.get(REACT_URL, timeout=60)
        reply.raise_for_status()
    except requests.RequestException as error:
        raise InfrastructureError(
            f"{REACT_URL} cannot be fetched: check the network, or give a local mirror (--source)"
        ) from error
    return reply.content


def _with_thoughts(goal: Goal, turns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The play with a plan before it and a thought at each change of aim, as ReAct writes them."""
    told = [(f"think: {_plan(goal)}", "OK.")]
    for number, (command, observation) in enumerate(turns):
        told.append((command, observation))
        is_last = number == len(turns) - 1
        if command.startswith("take ") and not is_last:
            told.append((f"think: Now I have the {goal.thing}. Next, I need to {_next(goal)}.", "OK."))
        elif command.startswith(("clean ", "heat ", "cool ")):
            told.append((f"think: That is done. Next, I need to put the {goal.thing} in the {goal.place}.", "OK."))
        elif command.startswith("move ") and not is_last:
            told.append((f"think: One is in place. Next, I need to find another {goal.thing}.", "OK."))
    return told


def _plan(goal: Goal) -> str:
    return f"I need to find and take a {goal.thing}, then {_next(goal)}. First I look where it is likely to be."


def _next(goal: Goal) -> str:
    if goal.place is None:
        return f"find a {goal.lamp} and turn it on"
    first = f"{goal.verb} it, then " if goal.verb else ""
    again = ", and do the same with another one" if goal.count == 2 else ""
    return f"{first}put it in the {goal.place}{again}"
