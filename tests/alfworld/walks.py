"""Random walks through a game with admissible commands, slightly wrong ones and nonsense."""

import random
from collections import defaultdict
from collections.abc import Iterator

from tasks.alfworld.alfred import Game, Play

ODD_SHARE = 0.3
RARE_VERBS = {"help": 0.1, "inventory": 0.3, "look": 0.6}
"""Weights of verbs that are always admissible and change nothing; others have weight 1."""

_TEMPLATES = (
    "go to {r}",
    "open {r}",
    "close {r}",
    "open {o}",
    "examine {r}",
    "examine {o}",
    "take {o} from {r}",
    "move {o} to {r}",
    "put {o} in/on {r}",
    "move {o} to {o2}",
    "use {o}",
    "use {r}",
    "heat {o} with {r}",
    "cool {o} with {r}",
    "clean {o} with {r}",
    "slice {o} with {o2}",
)
_NONSENSE = (
    "",
    " ",
    "think: I should look for it on the shelves.",
    "xyzzy",
    "look around",
    "inventory 1",
    "help me",
    "go",
    "go to",
    "go to nowhere 1",
    "take",
    "take mug 99 from shelf 99",
    "examine",
    "\u00a0look\u2003",
    "look\nlook",
)


def walk(game: Game, rng: random.Random, steps: int) -> list[str]:
    """Returns the stored walkthrough and `steps` random commands, in either order."""
    play, commands = Play(game), list[str]()
    if rng.random() < 0.5:
        commands += game.walkthrough
    for command in commands:
        play.step(command)
    walkthrough = () if commands else game.walkthrough
    return [*commands, *_wander(play, rng, steps), *walkthrough]


def _wander(play: Play, rng: random.Random, steps: int) -> Iterator[str]:
    for _ in range(steps):
        command = _odd(play, rng) if rng.random() < ODD_SHARE else _admissible(play, rng)
        play.step(command)
        yield command


def _admissible(play: Play, rng: random.Random) -> str:
    """Draws the verb first, because most admissible commands are `go to`."""
    by_verb = defaultdict[str, list[str]](list)
    for command in play.admissible():
        by_verb[command.partition(" ")[0]].append(command)
    (verb,) = rng.choices(list(by_verb), weights=[RARE_VERBS.get(verb, 1.0) for verb in by_verb])
    return rng.choice(by_verb[verb])


def _odd(play: Play, rng: random.Random) -> str:
    match rng.randrange(3):
        case 0:
            return rng.choice(_NONSENSE)
        case 1:
            return _respelled(_admissible(play, rng), rng)
    objects, receptacles = list(play.game.object_of), list(play.game.receptacle_of)
    one, other = (rng.choice(objects) if objects else "mug 1" for _ in range(2))
    return rng.choice(_TEMPLATES).format(r=rng.choice(receptacles), o=one, o2=other)


def _respelled(command: str, rng: random.Random) -> str:
    return rng.choice(
        (
            command.upper(),
            command.title(),
            command.replace(" ", "  ", 1),
            f"  {command} ",
            f"\t{command}\n",
            f"{command}.",
            f"{command} 1",
            command[:-1],
            command.replace("move ", "put ").replace(" to ", " in/on "),
            command.replace(" 1", " 01"),
        )
    )
