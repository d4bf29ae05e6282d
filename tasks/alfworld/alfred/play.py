"""One episode of a game, and the texts of games."""

from collections.abc import Callable, Hashable, Sequence

from .game import Game, bits

INTRO = "-= Welcome to TextWorld, ALFRED! =-\n\n{}\n\nYour task is to: {}"
NOTHING_HAPPENS = "Nothing happens."
EMPTY_HANDED = "You are not carrying anything."
MIDDLE_OF_ROOM = "You are in the middle of a room. Looking quickly around you, you see {}."
FACING = "You are facing the {}. Next to it, you see {}."


class Play:
    """A game being played: `intro` opens it, `step` takes one command and gives the game's answer.

    Apart from spaces around it, a command must be spelled exactly as in the game; any other is a step without effect.
    As in the original engine, play continues after a win, and `won` says whether the goal holds now.
    """

    __slots__ = (
        "_clean",
        "_contents",
        "_cool",
        "_held",
        "_hot",
        "_objects_at",
        "_opened",
        "_place",
        "_sliced",
        "_taken",
        "_toggled",
        "game",
        "steps",
        "won",
    )

    def __init__(self, game: Game) -> None:
        start = game.start
        self.game = game
        self.steps = 0
        """Number of commands so far, including those without effect."""
        self._place = start.place
        self._held = 0
        self._opened = 0
        """A set of receptacles; all other integers but the place are sets of objects."""
        self._contents = list(start.contents)
        self._objects_at = list(start.objects_at)
        self._taken = [0] * len(start.contents)
        """By receptacle: what was taken from it and not put back, the only objects that `look` shows."""
        self._cool = start.cool
        self._clean = self._hot = self._sliced = self._toggled = 0
        self.won = self._goal_holds()

    @property
    def state(self) -> Hashable:
        """Two plays of a game in equal states continue alike, whatever led there."""
        things = (self._held, self._opened, self._cool, self._clean, self._hot, self._sliced, self._toggled)
        return self._place, *things, *self._contents, *self._taken

    @property
    def intro(self) -> str:
        """The text before the first command."""
        game = self.game
        facing = [game.receptacles[number].name for number in game.places[game.start.place]]
        if facing:
            scene = FACING.format(listing(facing), "nothing")
        else:
            scene = MIDDLE_OF_ROOM.format(listing([f"a {each.name}" for each in game.receptacles]))
        return INTRO.format(scene, game.goal_text)

    def step(self, command: str) -> str:
        """Carries out a command and returns the observation."""
        self.steps += 1
        verb, _, rest = command.strip().partition(" ")
        act = _ACTS.get(verb)
        observation = act(self, rest) if act else None
        if observation is None:
            return NOTHING_HAPPENS
        self.won = self._goal_holds()
        return observation

    def admissible(self) -> list[str]:
        """Returns the commands that have an effect now, sorted."""
        game, place = self.game, self._place
        commands = [command for command, destination in game.trips if destination != place]
        commands += ("help", "inventory", "look")
        usable = 0
        for number in self._here:
            receptacle = game.receptacles[number]
            usable |= self._contents[number]
            commands.append(f"examine {receptacle.name}")
            if receptacle.openable:
                commands.append(f"{'close' if self._opened >> number & 1 else 'open'} {receptacle.name}")
            commands += self._with_held(number) if self._held else self._takes(number)
        commands += [f"use {game.objects[index].name}" for index in bits(usable & game.able["use"])]
        if self._held:
            commands += self._with_held_alone()
        commands.sort()
        return commands

    def _takes(self, number: int) -> list[str]:
        if not self._is_open(number):
            return []
        objects, source = self.game.objects, self.game.receptacles[number].name
        takeable = self._contents[number] & self.game.able["take"]
        return [f"take {objects[index].name} from {source}" for index in bits(takeable)]

    def _with_held(self, number: int) -> list[str]:
        receptacle, name, commands = self.game.receptacles[number], self._name(self._held), []
        if self._held & receptacle.accepts and self._is_open(number):
            commands.append(f"move {name} to {receptacle.name}")
        if receptacle.treatment and self._held & self.game.able[receptacle.treatment]:
            commands.append(f"{receptacle.treatment} {name} with {receptacle.name}")
        return commands

    def _with_held_alone(self) -> list[str]:
        game, name = self.game, self._name(self._held)
        commands = [f"examine {name}"]
        if self._held & game.knives:
            sliceable = self._objects_at[self._place] & game.able["slice"]
            commands += [f"slice {game.objects[index].name} with {name}" for index in bits(sliceable)]
        return commands

    @property
    def _here(self) -> tuple[int, ...]:
        return self.game.places[self._place]

    def _is_here(self, number: int | None) -> bool:
        return number is not None and self.game.receptacles[number].place == self._place

    def _is_open(self, number: int) -> bool:
        return bool(self._opened >> number & 1) or not self.game.receptacles[number].openable

    def _name(self, bit: int) -> str:
        return self.game.objects[bit.bit_length() - 1].name

    def _names(self, mask: int) -> list[str]:
        objects = self.game.objects
        return [f"a {objects[index].name}" for index in bits(mask)]

    def _goal_holds(self) -> bool:
        goal, contents = self.game.goal, self._contents
        wanted = goal.objects
        match goal.kind:
            case "look_at_obj_in_light":
                lit = self._toggled & goal.lamps
                return bool(self._held & wanted) and any(contents[number] & lit for number in self._here)
            case "pick_two_obj_and_place":
                return any((contents[number] & wanted).bit_count() > 1 for number in goal.receptacles)
            case "pick_clean_then_place_in_recep":
                wanted &= self._clean
            case "pick_heat_then_place_in_recep":
                wanted &= self._hot
            case "pick_cool_then_place_in_recep":
                wanted &= self._cool
        return any(contents[number] & wanted for number in goal.receptacles)

    # Each method takes what follows its verb, and returns the observation, or None if the command is not admissible.

    def _go(self, rest: str) -> str | None:
        to, _, name = rest.partition(" ")
        number = self.game.receptacle_of.get(name)
        # The original engine drops actions without effect, so going to a receptacle at this place is inadmissible.
        if to != "to" or number is None or self._is_here(number):
            return None
        self._place = self.game.receptacles[number].place
        return f"You arrive at {name}. {self._view(number)}"

    def _view(self, number: int) -> str:
        receptacle = self.game.receptacles[number]
        if not self._is_open(number):
            return f"The {receptacle.name} is closed."
        seen = listing(self._names(self._contents[number]))
        if receptacle.openable:
            return f"The {receptacle.name} is open. In it, you see {seen}."
        return f"On the {receptacle.name}, you see {seen}."

    def _look(self, rest: str) -> str | None:
        if rest:
            return None
        if not self._here:
            return MIDDLE_OF_ROOM.format("nothing")
        names = [self.game.receptacles[number].name for number in self._here]
        return FACING.format(listing(names), listing(self._names_beside()))

    def _names_beside(self) -> list[str]:
        """Returns the objects here that were taken from a receptacle here, once for each such receptacle."""
        beside = self._objects_at[self._place]
        return [
            f"a {self.game.objects[index].name}"
            for index in bits(beside)
            for number in self._here
            if self._taken[number] >> index & 1
        ]

    def _inventory(self, rest: str) -> str | None:
        if rest:
            return None
        return f"You are carrying: a {self._name(self._held)}." if self._held else EMPTY_HANDED

    def _help(self, rest: str) -> str | None:
        return None if rest else self.game.help_text

    def _examine(self, rest: str) -> str | None:
        number = self.game.receptacle_of.get(rest)
        if number is not None:
            return self._view(number) if self._is_here(number) else None
        bit = self.game.object_of.get(rest, 0)
        return self._inspect(bit) if bit & self._held else None

    def _inspect(self, bit: int) -> str:
        thing, sliced = self.game.objects[bit.bit_length() - 1], bool(self._sliced & bit)
        clean, hot, cool = (bool(treated & bit) for treated in (self._clean, self._hot, self._cool))
        if thing.inside is not None:
            return f"This is a normal {thing.name}. In it, you see {listing(self._names(thing.inside))}."
        if clean or hot or cool:
            return f"This is a {treated(thing.name, clean, hot, cool, sliced)}."
        if self._toggled & bit:
            return f"This {thing.name} is on."
        return f"This is a sliced {thing.name}." if sliced else f"There's nothing special about {thing.name}."

    def _open(self, rest: str) -> str | None:
        number = self.game.receptacle_of.get(rest)
        if number is None or not self._is_here(number) or self._is_open(number):
            return None
        self._opened |= 1 << number
        return f"You open the {rest}. {self._view(number)}"

    def _close(self, rest: str) -> str | None:
        number = self.game.receptacle_of.get(rest)
        if number is None or not self._is_here(number) or not self._opened >> number & 1:
            return None
        self._opened ^= 1 << number
        return f"You close the {rest}."

    def _pair(self, rest: str, word: str) -> tuple[int, int]:
        """Returns the object and the receptacle here that are named around `word`; (0, 0) if there are none."""
        thing, _, holder = rest.partition(f" {word} ")
        number = self.game.receptacle_of.get(holder)
        if number is None or not self._is_here(number):
            return 0, 0
        return self.game.object_of.get(thing, 0), number

    def _take(self, rest: str) -> str | None:
        bit, number = self._pair(rest, "from")
        takeable = 0 if self._held else self._contents[number] & self.game.able["take"]
        if not bit & takeable or not self._is_open(number):
            return None
        self._held = bit
        self._contents[number] ^= bit
        self._taken[number] |= bit
        self._objects_at[self._place] &= ~bit
        return f"You pick up the {self._name(bit)} from the {self.game.receptacles[number].name}."

    def _move(self, rest: str) -> str | None:
        bit, number = self._pair(rest, "to")
        receptacle = self.game.receptacles[number]
        if not bit & self._held & receptacle.accepts or not self._is_open(number):
            return None
        self._held = 0
        self._contents[number] |= bit
        self._taken[number] &= ~bit
        self._objects_at[self._place] |= bit
        return f"You move the {self._name(bit)} to the {receptacle.name}."

    def _treat(self, verb: str, rest: str) -> str | None:
        bit, number = self._pair(rest, "with")
        receptacle = self.game.receptacles[number]
        if receptacle.treatment != verb or not bit & self._held & self.game.able[verb]:
            return None
        if verb == "clean":
            self._clean |= bit
        elif verb == "heat":
            self._hot, self._cool = self._hot | bit, self._cool & ~bit
        else:
            self._hot, self._cool = self._hot & ~bit, self._cool | bit
        return f"You {verb} the {self._name(bit)} using the {receptacle.name}."

    def _use(self, rest: str) -> str | None:
        bit = self.game.object_of.get(rest, 0) & self.game.able["use"]
        if not any(self._contents[number] & bit for number in self._here):
            return None
        self._toggled |= bit
        return f"You turn on the {rest}."

    def _slice(self, rest: str) -> str | None:
        target, _, knife = rest.partition(" with ")
        bit = self.game.object_of.get(target, 0) & self.game.able["slice"] & self._objects_at[self._place]
        if not bit or not self.game.object_of.get(knife, 0) & self._held & self.game.knives:
            return None
        self._sliced |= bit
        return f"You sliced the {target} with the {knife}."


_ACTS: dict[str, Callable[[Play, str], str | None]] = {
    "go": Play._go,
    "look": Play._look,
    "inventory": Play._inventory,
    "help": Play._help,
    "examine": Play._examine,
    "open": Play._open,
    "close": Play._close,
    "take": Play._take,
    "move": Play._move,
    "heat": lambda play, rest: play._treat("heat", rest),
    "cool": lambda play, rest: play._treat("cool", rest),
    "clean": lambda play, rest: play._treat("clean", rest),
    "use": Play._use,
    "slice": Play._slice,
}


def listing(names: Sequence[str]) -> str:
    """Returns "nothing", "a", "a, and b" or "a, b, and c"."""
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


def treated(name: str, clean: bool, hot: bool, cool: bool, sliced: bool) -> str:
    """Returns an object with its treatment, e.g. "hot and clean sliced tomato 1"; one that is only cool is "cold"."""
    if cool and not (hot or clean or sliced):
        return f"cold {name}"
    warmth = "hot" if hot else "cool" if cool else ""
    adjectives = " and ".join(word for word in (warmth, "clean" if clean else "") if word)
    return " ".join(word for word in (adjectives, "sliced" if sliced else "", name) if word)
