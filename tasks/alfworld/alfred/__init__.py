"""ALFWorld's text games without their planner: the same texts, admissible commands and verdicts as alfworld 0.4.2 on
textworld 1.7.0, character by character, but about a thousand times as fast. Standard library only.

Why not the original: TextWorld has to be compiled, and takes too much time and memory (100 MB a game) for rollouts.

    from alfred import Game, Play

    play = Play(Game.load(Path("train/pick_and_place_simple-Mug-None-Desk-310/trial_1/game.tw-pddl")))
    print(play.intro)
    print(play.step("go to desk 1"), play.admissible(), play.won)
"""

from .expert import Expert, play_out
from .game import Game
from .play import Play
from .problem import UnsupportedGameError

__all__ = ["Expert", "Game", "Play", "UnsupportedGameError", "play_out"]
