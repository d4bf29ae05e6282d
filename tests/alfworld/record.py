"""`python -m tests.alfworld.record` writes transcripts/*.jsonl: our own games, played in the stock engine.

The first line of a transcript has the game. Every other line has a command (the second line has none: it is the reset),
the answer, the admissible commands and whether the game was won. `test_alfred.py` compares the native engine with them,
so it does not need the stock engine.
"""

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.alfworld import mini
from tasks.alfworld.alfred import Game
from tests.alfworld.kitchen import content
from tests.alfworld.stock import StockPlay
from tests.alfworld.walks import walk

FOLDER = Path(__file__).parent / "transcripts"
STEPS = 40
SEED = 7


def games() -> dict[str, dict[str, Any]]:
    """Returns the games by the names of their transcripts."""
    household = next(iter(mini.generate(1, SEED, "train")))
    return {
        "kitchen_place": content("pick_and_place_simple"),
        "kitchen_look": content("look_at_obj_in_light"),
        "mini": mini.game(household),
    }


def record(game: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Returns the lines of a transcript."""
    yield {name: game[name] for name in ("pddl_problem", "walkthrough")} | {"task": Game.parse(game, Path()).goal_text}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "game.tw-pddl"
        path.write_text(json.dumps(game))
        commands = walk(Game.load(path), random.Random(SEED), STEPS)
        with StockPlay(path) as play:
            yield {"command": None, "answer": play.intro, "admissible": play.admissible(), "won": play.won}
            for command in commands:
                answer = play.step(command)
                yield {"command": command, "answer": answer, "admissible": play.admissible(), "won": play.won}


def main() -> None:
    for name, game in games().items():
        lines = [json.dumps(line) for line in record(game)]
        (FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
