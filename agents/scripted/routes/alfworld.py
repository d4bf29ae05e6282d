"""Imitate an expert that explores; then play the training games and reward the games won.

Imitation has a weakness: a model that has only seen perfect play repeats an invalid command again and again, such as
taking what is not there. Such a turn is answered "Nothing happens.", and rollouts continue after it for a few turns, so
that reinforcement learning finds out what helps.
"""

import json
import random
from typing import Any

from routes import BaseRoute, Example, Part, Setting


class Route(BaseRoute):
    """Learns to play the training games."""

    MANY_RECEPTACLES = 10
    """With more receptacles in a room on average, the expert looks first where an object is likely to be."""
    with_examples = 0.25
    """Texts with examples are four times as long as the others, and this share is enough for the model to play as well
    after them as without."""

    def __init__(self, setting: Setting) -> None:
        from alfred import Game
        from alfred.transcript import examples_that_fit

        data, meta = setting.data, setting.meta
        self.games = {str(path): Game.load(path) for path in sorted((data / "train").rglob("game.tw-pddl"))}
        self.names = list(self.games)
        self.random = random.Random(setting.seed)
        self.random.shuffle(self.names)
        receptacles = sum(len(game.receptacles) for game in self.games.values())
        self.many_receptacles = receptacles > self.MANY_RECEPTACLES * len(self.games)
        self.play_settings = {"max_invalid": 5}
        if not self.many_receptacles:
            self.sft_share = 0.15  # small rooms are soon imitated
            self.play_settings["max_steps"] = 20  # the expert's longest games, and room for a few mistakes
        stored = data / "prompts.json"
        prompts = meta["options"]["prompts"]
        examples = json.loads(stored.read_text()).get(prompts, {}) if stored.exists() else {}
        self.faithful = prompts == "faithful"
        self.shown = examples_that_fit(examples, setting.room_after, meta["max_steps"])

    def kind(self, name: str) -> str:
        """Returns the kind of a game."""
        return str(self.games[name].kind)

    def before(self, name: str) -> str:
        """Returns what the grader shows before a game."""
        from alfred.transcript import framed

        return framed(self.shown.get(self.games[name].kind, ()))

    def example(self, name: str) -> Example | None:
        """Returns a game as the expert plays it; None where it does not win in time."""
        from alfred import Expert, Play
        from alfred.transcript import opening, turn

        # In a small room it looks everywhere in order, twice where it needs a lamp: that is easier to imitate.
        play, expert = Play(self.games[name]), Expert() if self.many_receptacles else Expert(homes={}, rounds=True)
        observation = play.intro
        before = self.before(name) if self.shows_examples(name) else ""
        example = Example(before + opening(play.intro), [])
        for _ in range(30):
            command = expert.act(observation, play.admissible())
            observation = play.step(command)
            said, _, answered = turn(command, observation).partition("\n")
            example.parts += [Part(said + "\n", True), Part(answered, False)]
            if play.won:
                return example
        return None

    def environment(self, name: str) -> Any:
        """Returns a game as it is graded; it is worth 1 if it is won."""
        from alfred.transcript import GameEnvironment

        return GameEnvironment(self.games[name], self.before(name), self.faithful)

    def practice(self, name: str) -> Any:
        """Returns a game for reinforcement; most have no examples before them, which are most of a text's length."""
        from alfred.transcript import GameEnvironment

        before = self.before(name) if self.shows_examples(name) else ""
        return GameEnvironment(self.games[name], before, self.faithful)
