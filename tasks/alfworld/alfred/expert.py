"""An expert that explores: it plays any ALFWorld game using only what a player sees.

Contract: `Expert` reads the intro, the observations and the admissible commands. It never reads a game's hidden state
or its walkthrough, so that whatever it does can be learned from a transcript. Its play is a function of these texts.
It searches the receptacles by kind, the likeliest first (see `HOMES`), and those of
one kind in the order of the intro. It opens what is closed, writes no thoughts, and never looks at a receptacle twice
unless `rounds` is set.

    expert = Expert()
    command = expert.act(play.intro, play.admissible())          # the first observation is the intro
    command = expert.act(play.step(command), play.admissible())  # and so on: see `play_out`
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .play import Play

Homes = Mapping[str, Mapping[str, int]]
"""The kinds of receptacle that hold a kind of object, each with its share in percent."""

MAX_STEPS = 50


class Turn(NamedTuple):
    """A command and the game's answer."""

    command: str
    observation: str


@dataclass(frozen=True)
class Goal:
    """The content of a task sentence such as "find two mug and put them in desk."."""

    thing: str
    place: str | None = None
    verb: str | None = None
    """clean, heat or cool: what has to be done with the thing first."""
    lamp: str | None = None
    """The lamp to look at the thing with; then there is no place."""
    count: int = 1


_SENTENCES = (
    re.compile(r"(?:look at|examine the) (?P<thing>\w+) (?:under|with) the (?P<lamp>\w+)\."),
    re.compile(r"(?:find|put) (?P<two>two) (?P<thing>\w+) (?:and put them )?in (?P<place>\w+)\."),
    re.compile(r"put a (?P<verb>clean|hot|cool) (?P<thing>\w+) in (?P<place>\w+)\."),
    re.compile(r"(?P<verb>clean|heat|cool) some (?P<thing>\w+) and put it in (?P<place>\w+)\."),
    re.compile(r"put (?:a|some) (?P<thing>\w+) (?:in|on) (?P<place>\w+)\."),
)
"""The two wordings that ALFWorld has for each of its task types."""

_APPLIANCES = {"clean": ("sinkbasin", "sink"), "heat": ("microwave",), "cool": ("fridge",)}
_CLOSED_KINDS = ("cabinet", "drawer", "fridge", "microwave", "safe")
_FEW = 3
_NAME = re.compile(r"(?<![a-z])[a-z]+ \d+")
_SHOWN = re.compile(r"(?:On the|The) ([a-z]+ \d+)(?:,| is open\. In it,) you see ([^.]{0,500})\.")
_TAKEN = re.compile(r"You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\.")
_MOVED = re.compile(r"You move the ([a-z]+ \d+) to the ([a-z]+ \d+)\.")
_TREATED = re.compile(r"You (clean|heat|cool) the ([a-z]+ \d+) using")


def read_goal(task: str) -> Goal:
    """Reads the sentence after "Your task is to: ".

    Raises:
        ValueError: the sentence is unknown.
    """
    for sentence in _SENTENCES:
        if found := sentence.search(task):
            words = found.groupdict()
            verb = "heat" if words.get("verb") == "hot" else words.get("verb")
            count = 2 if words.get("two") else 1
            return Goal(words["thing"], words.get("place"), verb, words.get("lamp"), count)
    raise ValueError(f"not a task of ALFWorld: {task!r}")


def kind_of(name: str) -> str:
    """Returns 'cabinet' for 'cabinet 3'."""
    return name.partition(" ")[0]


class Expert:
    """Plays games one after the other: an observation with a task sentence begins a new one.

    Args:
        homes: the likely places of things; `HOMES` by default.
        rounds: whether it searches for the lamp in the order of the intro, starting from where it took the thing, even
            if it has seen a lamp before. This takes more turns, but each of them depends on fewer texts.
    """

    def __init__(self, homes: "Homes | None" = None, rounds: bool = False) -> None:
        self._homes = HOMES if homes is None else homes
        self._rounds = rounds

    def begin(self, intro: str) -> None:
        """Reads the intro of a new game."""
        room, _, task = intro.partition("Your task is to: ")
        self._goal = read_goal(task)
        self._receptacles: list[str] = _NAME.findall(room)
        self._contents: dict[str, list[str]] = {}
        self._treated: set[str] = set()
        self._held: str | None = None
        self._round: list[str] = self._receptacles

    def act(self, observation: str, admissible: Sequence[str]) -> str:
        """Returns the next command, given the answer to the last one."""
        self.see(observation)
        return self.choose(admissible)

    def see(self, observation: str) -> None:
        """Updates what is known by an observation, also by the answer to a command of another player."""
        if "Your task is to: " in observation:
            self.begin(observation)
        elif found := _SHOWN.search(observation):
            self._contents[found[1]] = _NAME.findall(found[2])
        elif found := _TAKEN.search(observation):
            self._held = found[1]
            if self._rounds and self._goal.lamp:
                self._begin_round(found[2])
            self._forget(*found.groups())
        elif found := _MOVED.search(observation):
            self._held = None
            self._forget(*found.groups())
            self._contents[found[2]].append(found[1])
        elif found := _TREATED.search(observation):
            self._treat_as(found[1], found[2])

    def choose(self, admissible: Sequence[str]) -> str:
        """Returns the command, given all observations so far."""
        options = _Options(admissible)
        if self._held is None:
            return self._fetch(options)
        if kind_of(self._held) != self._goal.thing:
            return self._put_away(self._held, options)
        if self._goal.verb and self._held not in self._treated:
            return self._treat(self._held, self._goal.verb, options)
        if self._goal.lamp:
            return self._look(self._goal.lamp, options)
        return self._place(self._held, options)

    def _fetch(self, options: "_Options") -> str:
        target = self._target() if self._goal.count > 1 else None
        for receptacle in self._receptacles:
            if receptacle != target and (thing := self._seen(self._goal.thing, receptacle)):
                return options.one(f"take {thing} from {receptacle}") or options.approach(receptacle)
        return self._explore(self._goal.thing, options)

    def _treat(self, thing: str, verb: str, options: "_Options") -> str:
        appliance = next(name for name in self._receptacles if kind_of(name) in _APPLIANCES[verb])
        return options.starting(f"{verb} {thing} with ") or options.approach(appliance)

    def _look(self, lamp: str, options: "_Options") -> str:
        place = next((name for name in self._receptacles if self._seen(lamp, name)), None)
        there = options.approach(place) if place else self._explore(lamp, options)
        return options.starting(f"use {lamp} ") or there

    def _place(self, thing: str, options: "_Options") -> str:
        target = self._target()
        return options.one(f"move {thing} to {target}") or options.approach(target)

    def _put_away(self, thing: str, options: "_Options") -> str:
        """Puts down a thing that is not needed: here if possible, else at its likeliest place."""
        elsewhere = [name for name in self._receptacles if options.one(f"go to {name}", f"open {name}")]
        return options.starting(f"move {thing} to ") or options.approach(self._likeliest(kind_of(thing), elsewhere))

    def _explore(self, thing: str, options: "_Options") -> str:
        unseen = [name for name in self._round if name not in self._contents]
        if not unseen:  # the thing was moved after it was seen: start over
            self._contents.clear()
        return options.approach(self._likeliest(thing, unseen or self._round))

    def _likeliest(self, thing: str, receptacles: Sequence[str]) -> str:
        """Returns the first receptacle with the highest probability per step that looking into it takes."""
        homes, numbers = self._homes.get(thing, {}), Counter(map(kind_of, self._receptacles))

        def chance(receptacle: str) -> float:
            kind = kind_of(receptacle)
            # Up to three of a kind count as one, so that in a small house the order depends on the thing only.
            crowd = max(1.0, numbers[kind] / _FEW)
            return homes.get(kind, 0) / crowd / (2 if kind in _CLOSED_KINDS else 1)

        return max(receptacles, key=chance)

    def _target(self) -> str:
        """Returns where things go: the target with most of them, else the first one in the intro."""

        def number(place: str) -> int:
            return sum(kind_of(thing) == self._goal.thing for thing in self._contents.get(place, ()))

        return max((name for name in self._receptacles if kind_of(name) == self._goal.place), key=number)

    def _seen(self, kind: str, receptacle: str) -> str | None:
        return next((thing for thing in self._contents.get(receptacle, ()) if kind_of(thing) == kind), None)

    def _begin_round(self, here: str) -> None:
        place = self._receptacles.index(here)
        self._round = self._receptacles[place:] + self._receptacles[:place]
        self._contents = {here: self._contents.get(here, [])}

    def _forget(self, thing: str, receptacle: str) -> None:
        self._contents[receptacle] = [other for other in self._contents.get(receptacle, ()) if other != thing]

    def _treat_as(self, verb: str, thing: str) -> None:
        if verb == self._goal.verb:
            self._treated.add(thing)
        elif {verb, self._goal.verb} == {"heat", "cool"}:
            self._treated.discard(thing)


class _Options:
    """The admissible commands, with look-ups."""

    def __init__(self, admissible: Sequence[str]) -> None:
        self._admissible = admissible

    def one(self, *commands: str) -> str | None:
        """Returns the first of `commands` that is admissible."""
        return next((command for command in commands if command in self._admissible), None)

    def starting(self, prefix: str) -> str | None:
        return next((command for command in self._admissible if command.startswith(prefix)), None)

    def approach(self, receptacle: str) -> str:
        """Returns the next command towards the content of a receptacle; `go to` the current place is inadmissible."""
        return self.one(f"go to {receptacle}", f"open {receptacle}", f"examine {receptacle}") or "look"


def play_out(play: Play, expert: Expert, max_steps: int = MAX_STEPS) -> list[Turn]:
    """Plays a new game to its end, and returns the turns."""
    turns: list[Turn] = []
    observation = play.intro
    while not play.won and len(turns) < max_steps:
        command = expert.act(observation, play.admissible())
        observation = play.step(command)
        turns.append(Turn(command, observation))
    return turns


def _table(text: str) -> dict[str, dict[str, int]]:
    rows = (line.split() for line in text.splitlines())
    return {thing: {kind: int(share) for kind, share in (home.split("=") for home in homes)} for thing, *homes in rows}


HOMES: Homes = _table("""\
alarmclock desk=34 shelf=21 sidetable=19 dresser=17 diningtable=7
apple countertop=25 fridge=24 diningtable=15 microwave=13 garbagecan=12 sinkbasin=9 sidetable=2
book bed=37 desk=14 countertop=10 drawer=10 dresser=6 diningtable=5 cabinet=4 sidetable=4 coffeetable=3 armchair=3
bowl cabinet=30 countertop=18 fridge=17 diningtable=15 desk=6 shelf=5 sinkbasin=3 microwave=2 dresser=2
box diningtable=23 sofa=22 coffeetable=21 shelf=8 sidetable=7 desk=6 cabinet=4 dresser=3 armchair=3 tvstand=3
bread countertop=55 diningtable=31 fridge=12
butterknife countertop=59 diningtable=27 drawer=8 sinkbasin=5
candle countertop=28 toilet=28 drawer=12 cabinet=12 shelf=6 sidetable=6 coffeetable=2 diningtable=2 cart=2
cd drawer=28 desk=20 dresser=14 sidetable=13 garbagecan=8 shelf=7 diningtable=6 cabinet=2 armchair=2
cellphone bed=21 drawer=21 desk=13 dresser=9 sidetable=9 countertop=7 diningtable=6 shelf=6 armchair=3 coffeetable=2
cloth bathtubbasin=30 cabinet=20 countertop=17 drawer=15 sinkbasin=8 shelf=4 toilet=3
creditcard drawer=24 shelf=13 sidetable=12 desk=9 dresser=9 sofa=7 armchair=6 countertop=5 coffeetable=5 diningtable=5
cup cabinet=23 countertop=21 fridge=21 diningtable=15 sinkbasin=9 microwave=7 sidetable=2 shelf=2
desklamp sidetable=40 desk=29 dresser=21 shelf=9 coffeetable=2
dishsponge countertop=25 cabinet=22 drawer=21 diningtable=12 sinkbasin=8 garbagecan=5 shelf=3 bathtubbasin=2
egg fridge=25 countertop=24 sinkbasin=13 garbagecan=13 microwave=12 diningtable=12 sidetable=2
fork countertop=44 diningtable=24 drawer=22 sinkbasin=9 sidetable=2
glassbottle cabinet=31 countertop=27 diningtable=14 sinkbasin=9 fridge=9 garbagecan=7 shelf=4
handtowel handtowelholder=96 countertop=4
kettle stoveburner=41 countertop=25 cabinet=24 diningtable=7 sinkbasin=2
keychain drawer=23 sidetable=16 shelf=12 desk=12 dresser=11 coffeetable=7 diningtable=5 armchair=5 sofa=4 tvstand=3
knife countertop=48 diningtable=25 drawer=21 sinkbasin=5
ladle countertop=41 cabinet=25 drawer=17 diningtable=14 sinkbasin=2
laptop bed=47 desk=12 sofa=10 diningtable=9 coffeetable=9 dresser=5 sidetable=3 armchair=2 tvstand=2
lettuce countertop=41 diningtable=28 fridge=23 sinkbasin=5 sidetable=2
mug countertop=24 coffeemachine=15 cabinet=14 fridge=12 diningtable=10 microwave=6 desk=5 sinkbasin=5 shelf=4 sidetable=3
newspaper sofa=20 coffeetable=18 diningtable=17 sidetable=14 shelf=11 dresser=8 armchair=7 tvstand=3 drawer=2
pan stoveburner=52 countertop=33 cabinet=7 diningtable=4 fridge=4
papertowelroll countertop=54 garbagecan=15 diningtable=14 shelf=10 toilet=4 sidetable=2
pen desk=22 drawer=17 dresser=14 sidetable=13 shelf=13 diningtable=9 countertop=5 coffeetable=3 garbagecan=2
pencil drawer=20 desk=19 sidetable=17 shelf=14 dresser=10 diningtable=8 garbagecan=6 countertop=4 coffeetable=2
peppershaker cabinet=33 countertop=30 diningtable=16 drawer=15 shelf=3 sidetable=2
pillow bed=69 sofa=24 armchair=6
plate cabinet=36 countertop=28 diningtable=19 fridge=8 shelf=3 sinkbasin=2 coffeetable=2
pot stoveburner=73 countertop=14 fridge=4 diningtable=4 cabinet=3
potato countertop=28 fridge=26 diningtable=17 sinkbasin=11 microwave=10 garbagecan=6
remotecontrol coffeetable=20 sofa=16 sidetable=13 diningtable=10 drawer=8 armchair=8 dresser=7 tvstand=7 desk=5 shelf=3
saltshaker countertop=32 cabinet=32 diningtable=18 drawer=14 shelf=3 sidetable=2
soapbar countertop=20 toilet=16 sinkbasin=15 cabinet=12 bathtubbasin=12 drawer=11 garbagecan=7 shelf=4 sidetable=2
soapbottle countertop=32 cabinet=28 diningtable=15 garbagecan=10 toilet=6 shelf=5 drawer=2
spatula countertop=45 diningtable=25 drawer=21 sinkbasin=9
spoon countertop=38 drawer=28 diningtable=22 sinkbasin=11 sidetable=2
spraybottle countertop=32 toilet=23 cabinet=18 garbagecan=10 shelf=6 cart=3 diningtable=3 sidetable=2
statue shelf=29 coffeetable=16 countertop=14 diningtable=14 sidetable=12 dresser=7 tvstand=5 desk=3
teddybear bed=100
tissuebox shelf=18 coffeetable=15 drawer=14 countertop=13 diningtable=11 sidetable=11 desk=8 tvstand=3 cabinet=2 cart=2
toiletpaper toilet=23 countertop=23 toiletpaperhanger=12 drawer=11 cabinet=11 garbagecan=9 shelf=5 dresser=2 cart=2
tomato fridge=33 countertop=30 diningtable=20 garbagecan=9 sinkbasin=7 sidetable=2
towel towelholder=97 countertop=3
vase shelf=34 countertop=15 cabinet=15 coffeetable=9 diningtable=8 dresser=7 sidetable=6 tvstand=3
watch drawer=23 coffeetable=21 sidetable=16 diningtable=12 dresser=11 tvstand=8 shelf=7 desk=3
wateringcan coffeetable=53 shelf=38 sidetable=9
winebottle countertop=37 cabinet=25 diningtable=24 garbagecan=9 shelf=3
""")  # noqa: E501
"""The kinds of receptacle in which things of a kind are at the start, in percent, over the 3,553 training games of
ALFWorld (json_2.1.1); the ten most frequent kinds with at least 1.5 percent."""
