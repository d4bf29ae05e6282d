"""The mini variant of alfworld: small households for the real engine, and the text that the base model `tiny` reads.

Contract: everything is a function of its seed. Things, receptacles, which can hold which, the likely places of things
and the wording of tasks are ALFRED's, so that a model can use in the real games what it learns here. A task asks for a
*pair*: a kind of thing, and the kind of receptacle at which the task ends (where the thing goes, or where the lamp for
looking at it is). The pairs of the split eval, 94 of 321, occur in no task of train; their things and receptacles do,
in other pairs: see `eval_pairs`.

    household = next(generate(1, seed=0, split="train"))
    write(household, Path("games/0"))      # games/0/game.tw-pddl, if its walkthrough wins
"""

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Literal

from tasks.alfworld.alfred import Game, Play
from tasks.alfworld.alfred.expert import HOMES, Expert, Turn, kind_of, play_out
from tasks.alfworld.alfred.play import NOTHING_HAPPENS
from tasks.alfworld.alfred.problem import KINDS, Kind
from tasks.alfworld.alfred.transcript import transcript
from tasks.alfworld.household import (
    APPLIANCES,
    LAMP,
    LAMP_ROOMS,
    NEVER_A_TARGET,
    OPENABLE,
    ROOMS,
    THINGS,
    VERBS,
    WORDINGS,
    Household,
    Pair,
    Room,
    names,
    problem,
)
from tasks.alfworld.release import GAME, released_domain, released_grammar

Split = Literal["train", "eval"]

LONGEST_WALKTHROUGH = 10
PRETRAINING_DOCUMENTS = 1200
NOTES_SHARE = 0.4
SEARCHES = 3
SOLVED_SHARE = 0.5
"""Share of the transcripts that the expert plays."""
MIN_RANDOM_STEPS, MAX_RANDOM_STEPS = 4, 10
INVALID_SHARE = 0.02
MIN_RECEPTACLES, MAX_RECEPTACLES = 3, 4
MAX_DISTRACTORS = 2
"""Maximum number of things that the task does not need."""
FULL_RECEPTACLE = 3
"""Maximum number of things in a receptacle, to keep lists short."""

_NUMBER = re.compile(r"_bar_\d+|(?<=[a-z]) \d+\b")
_OPENABLE = frozenset(kind.lower() for kind in OPENABLE)


_RANDOM_WEIGHTS = {
    **{"open": 50.0, "clean": 12.0, "heat": 12.0, "cool": 12.0, "use": 8.0, "go": 5.0, "take": 3.0, "move": 2.0},
    **{"close": 0.2, "examine": 0.2, "inventory": 0.1, "look": 0.1},
}
"""Relative frequencies of admissible verbs in random play."""


@cache
def eval_pairs() -> frozenset[Pair]:
    """Returns the pairs of eval, chosen by hash: at most a third of a thing's pairs and half of a place's."""
    pairs = sorted(_all_pairs(), key=lambda pair: hashlib.sha256("/".join(pair).encode()).digest())
    things, places = Counter(pair.thing for pair in pairs), Counter(pair.place for pair in pairs)
    left_things, left_places = things.copy(), places.copy()
    chosen = set()
    for thing, place in pairs:
        if 3 * (left_things[thing] - 1) >= 2 * things[thing] and 2 * (left_places[place] - 1) >= places[place]:
            chosen.add(Pair(thing, place))
            left_things[thing] -= 1
            left_places[place] -= 1
    return frozenset(chosen)


def canonical(text: str) -> str:
    """See `a2rl.task_api.contract.Preparer`: things and places without their numbers."""
    return _NUMBER.sub("", text)


def generate(count: int, seed: int | str, split: Split, but: Collection[Household] = ()) -> Iterator[Household]:
    """Yields `count` different households of one split, with the task types in turn, none of which is in `but`."""
    rng = random.Random(f"alfworld-mini/{split}/{seed}")
    seen = set(but)
    for kind in islice(cycle(KINDS), count):
        while (household := _draw(rng, kind, split)) is None or household in seen:
            pass
        seen.add(household)
        yield household


def write(household: Household, folder: Path) -> Path:
    """Writes a game into a folder, after checking that its walkthrough wins.

    Raises:
        ValueError: it is won at the start, or its walkthrough does not win.
    """
    path, content = folder / GAME, game(household)
    play = Play(Game.parse(content, path))
    won_at_once = play.won
    for command in household.walkthrough:
        play.step(command)
    if won_at_once or not play.won:
        raise ValueError(f"{'won at the start' if won_at_once else 'not won by its walkthrough'}: {household}")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def game(household: Household) -> dict[str, object]:
    """Returns the content of a game file, with the keys of the released ones."""
    return {
        "pddl_domain": released_domain(),
        "grammar": released_grammar(household.task),
        "pddl_problem": problem(household),
        "solvable": True,
        "walkthrough": list(household.walkthrough),
    }


def pretraining_text(
    seed: int,
    documents: int = PRETRAINING_DOCUMENTS,
    solved_share: float = SOLVED_SHARE,
    notes_share: float = NOTES_SHARE,
) -> Iterator[str]:
    """Yields documents that teach what the words do, but hardly the skill.

    Most transcripts are random play. Notes go through the places and say whether the wanted thing is there, because
    comparing what is seen with what is wanted is what a small model takes longest to learn.
    """
    rng = random.Random(f"alfworld-mini/pretraining/{seed}")
    for kind in rng.choices(KINDS, k=documents):
        while (household := _draw(rng, kind, "train")) is None:
            pass
        play = Play(Game.parse(game(household), Path(GAME)))
        if rng.random() < notes_share:
            yield _notes(play.game, rng)
        else:
            turns = play_out(play, Expert(homes={})) if rng.random() < solved_share else _play_at_random(play, rng)
            yield transcript(play.intro, turns)


def _notes(room: Game, rng: random.Random) -> str:
    """Searches for one thing after the other, place by place, until it is found."""
    things = [thing.name for thing in room.objects if " " in thing.name]
    lines = []
    for _ in range(SEARCHES):
        wanted = kind_of(rng.choice(things)) if rng.random() < 0.8 else rng.choice(sorted(THINGS)).lower()
        lines.append(f"Wanted: {wanted}.")
        play = Play(room)
        for receptacle in rng.sample(room.receptacles, k=len(room.receptacles)):
            seen = _look_into(play, receptacle.name)
            names_seen = re.findall(r"a ([a-z]+ \d+)", seen.partition("you see")[2])
            found = [name for name in names_seen if kind_of(name) == wanted]
            lines.append(f"{seen} {f'Yes: {found[0]}.' if found else 'No.'}")
            if found:
                break
    return "\n".join(lines)


def _look_into(play: Play, receptacle: str) -> str:
    """Goes to a receptacle, opens it if necessary, and returns the last answer."""
    arrived = play.step(f"go to {receptacle}")
    opened = play.step(f"open {receptacle}")
    return arrived if opened == NOTHING_HAPPENS else opened


def _all_pairs() -> set[Pair]:
    return {
        Pair(thing, place)
        for room in ROOMS.values()
        for thing in room.things
        for place in THINGS[thing].places.intersection(room.receptacles) - NEVER_A_TARGET
    }


@cache
def _asks(kind: Kind, split: Split) -> tuple[tuple[str, Pair], ...]:
    """Returns every pair that a task of this kind can ask for, with the room."""
    rooms = LAMP_ROOMS if kind == "look_at_obj_in_light" else tuple(ROOMS)
    return tuple(
        (room, pair)
        for room in rooms
        for pair in sorted(_all_pairs())
        if (pair in eval_pairs()) == (split == "eval") and _makes_sense(kind, ROOMS[room], pair)
    )


def _makes_sense(kind: Kind, room: Room, pair: Pair) -> bool:
    if pair.thing not in room.things or pair.place not in room.receptacles:
        return False
    if kind == "look_at_obj_in_light":
        return pair.place in THINGS[LAMP].places
    if verb := VERBS.get(kind):
        appliance = APPLIANCES[verb]
        return verb in THINGS[pair.thing].abilities and appliance in room.receptacles and appliance != pair.place
    return True


def _draw(rng: random.Random, kind: Kind, split: Split) -> Household | None:
    """Draws a household; returns None where the parts do not fit together, and the caller draws again."""
    room_name, pair = rng.choice(_asks(kind, split))
    room = ROOMS[room_name]
    looking = kind == "look_at_obj_in_light"
    wanted = [_home(rng, pair, pair.thing, room.receptacles, looking) for _ in range(2 if "two" in kind else 1)]
    if None in wanted:
        return None
    needed = [home for home in wanted if home] + [pair.place, *([APPLIANCES[VERBS[kind]]] if kind in VERBS else [])]
    receptacles = _furnish(rng, room, needed, rng.randint(MIN_RECEPTACLES, MAX_RECEPTACLES))
    inside = _Contents(rng, receptacles)
    for home in wanted:
        inside.put(pair.thing, home)
    if looking:
        inside.put(LAMP, pair.place)
    for thing in rng.sample(room.things * 2, k=rng.randint(0, MAX_DISTRACTORS)):
        inside.put(thing, _home(rng, pair, thing, receptacles, looking))
    things = inside.sorted()
    walkthrough = _solve(kind, pair, receptacles, things)
    if len(walkthrough) > LONGEST_WALKTHROUGH:
        return None
    task = rng.choice(WORDINGS[kind]).format(thing=pair.thing.lower(), place=pair.place.lower())
    return Household(kind, task, pair, receptacles, things, walkthrough)


def _home(rng: random.Random, pair: Pair, thing: str, kinds: Sequence[str], looking: bool) -> str | None:
    """Draws where a thing is: a likely kind of receptacle, but not the one of the task."""
    shares = HOMES[thing.lower()]
    fitting = [kind for kind in kinds if kind in THINGS[thing].places and (looking or Pair(thing, kind) != pair)]
    weights = [shares.get(kind.lower(), 0) for kind in fitting]
    return rng.choices(fitting, weights)[0] if any(weights) else None


def _furnish(rng: random.Random, room: Room, needed: Sequence[str], count: int) -> tuple[str, ...]:
    receptacles = list(dict.fromkeys(needed))
    while len(receptacles) < count:
        kind = rng.choice(room.receptacles)
        if kind in room.several or kind not in receptacles:
            receptacles.append(kind)
    return tuple(sorted(receptacles, key=str.lower))


class _Contents:
    """The things in each receptacle."""

    def __init__(self, rng: random.Random, receptacles: Sequence[str]) -> None:
        self._rng = rng
        self._receptacles = receptacles
        self._things: list[tuple[str, int]] = []

    def put(self, thing: str, home: str | None) -> None:
        """Puts a thing into a receptacle of the kind `home`, unless all of them are full."""
        number = Counter(index for _, index in self._things)
        places = [
            index for index, kind in enumerate(self._receptacles) if kind == home and number[index] < FULL_RECEPTACLE
        ]
        if places:
            self._things.append((thing, self._rng.choice(places)))

    def sorted(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self._things, key=lambda thing: thing[0].lower()))


def _solve(kind: Kind, pair: Pair, receptacles: Sequence[str], things: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Returns a short walkthrough, using knowledge of where everything is."""
    places, route = names(receptacles), _Route()
    wanted = [
        (name, index)
        for name, (thing, index) in zip(names([thing for thing, _ in things]), things, strict=True)
        if thing == pair.thing
    ]
    for name, index in wanted[: 2 if kind == "pick_two_obj_and_place" else 1]:
        route.reach(places[index])
        route.do(f"take {name} from {places[index]}")
        if verb := VERBS.get(kind):
            appliance = places[receptacles.index(APPLIANCES[verb])]
            route.go(appliance)
            route.do(f"{verb} {name} with {appliance}")
        if kind == "look_at_obj_in_light":
            route.go(places[dict(things)[LAMP]])
            route.do(f"use {LAMP.lower()} 1")
        else:
            target = places[receptacles.index(pair.place)]
            route.reach(target)
            route.do(f"move {name} to {target}")
    return tuple(route.commands)


class _Route:
    """Collects commands, without unnecessary steps."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self._at: str | None = None
        self._opened: set[str] = set()

    def do(self, command: str) -> None:
        self.commands.append(command)

    def go(self, receptacle: str) -> None:
        if receptacle != self._at:
            self.do(f"go to {receptacle}")
            self._at = receptacle

    def reach(self, receptacle: str) -> None:
        """Goes to a receptacle and opens it."""
        self.go(receptacle)
        if kind_of(receptacle) in _OPENABLE and receptacle not in self._opened:
            self.do(f"open {receptacle}")
            self._opened.add(receptacle)


def _play_at_random(play: Play, rng: random.Random) -> list[Turn]:
    """Plays at random while going round the room; by chance this may win."""
    turns: list[Turn] = []
    known: set[str] = set()
    round_trip = [f"go to {receptacle.name}" for receptacle in play.game.receptacles]
    for _ in range(rng.randint(MIN_RANDOM_STEPS, MAX_RANDOM_STEPS)):
        admissible = play.admissible()
        impossible = sorted(known.difference(admissible))
        known |= set(admissible)
        command = _random_command(admissible, rng)
        if impossible and rng.random() < INVALID_SHARE:
            command = rng.choice(impossible)
        elif command.startswith("go to "):
            done = {turn.command for turn in turns}
            command = next((trip for trip in round_trip if trip not in done and trip in admissible), command)
        turns.append(Turn(command, play.step(command)))
        if play.won:
            break
    return turns


def _random_command(admissible: Sequence[str], rng: random.Random) -> str:
    verbs = {command.split(" ")[0] for command in admissible}
    likely = sorted(verbs & _RANDOM_WEIGHTS.keys())
    (verb,) = rng.choices(likely, weights=[_RANDOM_WEIGHTS[verb] for verb in likely])
    return rng.choice([command for command in admissible if command.split(" ")[0] == verb])
