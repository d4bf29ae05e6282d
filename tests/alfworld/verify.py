"""Compares the native engine (`tasks.alfworld.alfred`) with the original one, game by game and step by step.

Each game is played once in both: its stored walkthrough, and a random walk of admissible, almost admissible and
nonsensical commands (see walks.py). The intro, and after every command the observation, the admissible commands and
whether the game is won have to be the same. A second part times both on the same commands.
"""

import argparse
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from rich.console import Console
from rich.progress import track

from a2rl.core.errors import A2rlError, UsageError
from tasks.alfworld.alfred import Game, Play, UnsupportedGameError
from tests.alfworld.stock import StockPlay, memoised
from tests.alfworld.walks import walk

SHOWN = 5
"""Number of differences that are printed in full."""
TIMED_GAMES, TIMED_STEPS = 3, 12
"""Games and steps that the unmodified engine plays for the speed ratios."""
NATIVE_REPEATS = 20
OPEN_GAMES = 134
"""Number of games that grading ALFWorld's unseen games plays at once."""

EPILOG = """examples:
  python -m tests.alfworld.verify json_2.1.1/valid_seen --games 5            # a few games, the unmodified engine
  python -m tests.alfworld.verify json_2.1.1 --games 500 --memoised --json   # many: about two seconds a game
  python -m tests.alfworld.verify json_2.1.1 --native-only                   # replay all walkthroughs in ours only
"""

_out = Console(highlight=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False)
_T = TypeVar("_T")


class Difference(NamedTuple):
    """The first difference between the engines."""

    game: str
    commands: tuple[str, ...]
    """All commands so far; none if the games begin differently."""
    what: str
    stock: object
    native: object

    def __str__(self) -> str:
        after = " > ".join(self.commands[-4:]) or "reset"
        where = f"{self.game}: {self.what} after {len(self.commands)} commands (... {after})"
        return f"{where}\n  stock:  {self.stock!r}\n  native: {self.native!r}"


class Timing(NamedTuple):
    """CPU time, which does not depend on other processes. A step includes computing the admissible commands."""

    load_s: float
    step_s: float


@dataclass(frozen=True)
class Report:
    """What `--json` prints."""

    games: int
    steps: int
    differences: int
    walkthroughs_won: int
    engine: str
    """The original engine that was compared: memoised or unmodified."""
    speed_ratio: float
    """Time of a step in the unmodified original engine, divided by ours."""
    load_ratio: float
    """The same for loading and resetting a game."""
    stock_step_ms: float
    native_step_ms: float


@dataclass(frozen=True)
class NativeReport:
    """What `--native-only --json` prints."""

    games: int
    steps: int
    walkthroughs_won: int
    load_ms: float
    """Per game."""
    open_games: int
    steps_per_s: float
    """On one core, over `open_games` games in turn."""
    bytes_per_game: int


def compare(path: Path, commands: Sequence[str]) -> tuple[int, Difference | None]:
    """Plays the commands in both engines; returns the number of equal steps and the first difference."""
    native = Play(Game.load(path))
    with StockPlay(path) as stock:
        pairs = [("intro", stock.intro, native.intro), ("admissible", stock.admissible(), native.admissible())]
        for number in range(len(commands) + 1):
            for what, theirs, ours in (*pairs, ("won", stock.won, native.won)):
                if theirs != ours:
                    return number, Difference(str(path), tuple(commands[:number]), what, theirs, ours)
            if number < len(commands):
                observations = stock.step(commands[number]), native.step(commands[number])
                pairs = [("observation", *observations), ("admissible", stock.admissible(), native.admissible())]
    return len(commands), None


def time_stock(path: Path, commands: Sequence[str]) -> Timing:
    """Measures the unmodified original engine."""
    started = time.process_time()
    with StockPlay(path) as play:
        loaded = time.process_time()
        for command in commands:
            play.step(command)
            play.admissible()
        return Timing(loaded - started, (time.process_time() - loaded) / len(commands))


def time_native(path: Path, commands: Sequence[str]) -> Timing:
    """Measures our engine."""
    started = time.process_time()
    for _ in range(NATIVE_REPEATS):
        play = Play(game := Game.load(path))
        _ = play.intro, play.admissible()
    loaded = time.process_time()
    for _ in range(NATIVE_REPEATS):
        play = Play(game)
        for command in commands:
            play.step(command)
            play.admissible()
    stepped = time.process_time()
    return Timing((loaded - started) / NATIVE_REPEATS, (stepped - loaded) / NATIVE_REPEATS / len(commands))


def verify(paths: Sequence[Path], steps: int, seed: int, fast: bool) -> tuple[Report, list[Difference]]:
    """Compares all games (`fast`: with the memoised original engine), then times the unmodified one on a few."""
    differences, compared, won = list[Difference](), 0, 0
    walks = {path: walk(Game.load(path), random.Random(f"{seed}/{path.parent.name}"), steps) for path in paths}
    with memoised() if fast else nullcontext():
        for path in _progress(paths, "comparing"):
            number, difference = compare(path, walks[path])
            compared += number
            won += wins(Game.load(path))
            differences += [difference] if difference else []
    timed = paths[:: max(1, len(paths) // TIMED_GAMES)][:TIMED_GAMES]
    stock, native = (
        _mean([timer(path, walks[path][:TIMED_STEPS]) for path in _progress(timed, "timing")])
        for timer in (time_stock, time_native)
    )
    report = Report(
        games=len(paths),
        steps=compared,
        differences=len(differences),
        walkthroughs_won=won,
        engine="memoised" if fast else "unmodified",
        speed_ratio=round(stock.step_s / native.step_s, 1),
        load_ratio=round(stock.load_s / native.load_s, 1),
        stock_step_ms=round(stock.step_s * 1000, 3),
        native_step_ms=round(native.step_s * 1000, 5),
    )
    return report, differences


def _mean(timings: Sequence[Timing]) -> Timing:
    return Timing(*(sum(column) / len(timings) for column in zip(*timings, strict=True)))


def wins(game: Game) -> bool:
    """Whether the stored walkthrough wins, and only with its last command."""
    play = Play(game)
    for command in game.walkthrough:
        if play.won:
            return False
        play.step(command)
    return play.won


def verify_native(paths: Sequence[Path], steps: int, seed: int) -> NativeReport:
    """Replays all walkthroughs in our engine, and measures its speed and memory over some open games."""
    started, replayed, won = time.process_time(), 0, 0
    for path in _progress(paths, "replaying"):
        game = Game.load(path)
        replayed += len(game.walkthrough)
        won += wins(game)
    load_s = (time.process_time() - started) / len(paths)
    opened = paths[:: max(1, len(paths) // OPEN_GAMES)][:OPEN_GAMES]
    return NativeReport(
        games=len(paths),
        steps=replayed,
        walkthroughs_won=won,
        load_ms=round(load_s * 1000, 3),
        open_games=len(opened),
        steps_per_s=round(_steps_per_s(opened, steps, seed)),
        bytes_per_game=_bytes_per_game(opened),
    )


def _steps_per_s(paths: Sequence[Path], steps: int, seed: int) -> float:
    games = [Game.load(path) for path in paths]
    walks = [walk(game, random.Random(f"{seed}/{game.path.parent.name}"), steps)[:steps] for game in games]
    plays = [Play(game) for game in games]
    started, taken = time.process_time(), 0
    for commands in zip(*walks, strict=True):
        for play, command in zip(plays, commands, strict=True):
            play.step(command)
            play.admissible()
            taken += 1
    return taken / (time.process_time() - started)


def _bytes_per_game(paths: Sequence[Path]) -> int:
    Game.load(paths[0])  # so that no measurement includes what games share
    tracemalloc.start()
    plays = [Play(Game.load(path)) for path in paths]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held // len(plays)


def _progress(items: Sequence[_T], label: str) -> Iterable[_T]:
    return track(items, description=label, console=_err, transient=True, disable=not _err.is_terminal)


def game_files(folder: Path, games: int | None, seed: int) -> list[Path]:
    """Returns the games below a folder, sorted; with `games` a random choice of as many."""
    if not folder.is_dir():
        raise UsageError(f"folder not found: {folder}")
    found = sorted(folder.rglob("game.tw-pddl"))
    if not found:
        raise UsageError(f"no game.tw-pddl below {folder}: name a folder with games of ALFWorld (json_2.1.1)")
    if games is None or games >= len(found):
        return found
    return sorted(random.Random(seed).sample(found, games))


def main() -> None:
    """Exits with code 0 if there is no difference, 1 if there is one, and 2 if the call is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.alfworld.verify",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="GAMES_DIR", help="searched for game.tw-pddl files")
    parser.add_argument("--games", type=_positive, help="how many, drawn at random (default: all)")
    parser.add_argument(
        "--steps", type=_positive, default=50, help="length of the random walk in each game (default: 50)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--memoised", action="store_true", help="compare with the memoised original engine, which is faster"
    )
    parser.add_argument(
        "--native-only", action="store_true", help="replay the walkthroughs in our engine; measure speed and memory"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    try:
        sys.exit(_run(arguments))
    except (A2rlError, UnsupportedGameError) as error:
        _err.print(f"error: {error}")
        sys.exit(error.exit_code if isinstance(error, A2rlError) else 2)


def _run(arguments: argparse.Namespace) -> int:
    paths = game_files(arguments.folder, arguments.games, arguments.seed)
    differences: list[Difference] = []
    report: Report | NativeReport
    if arguments.native_only:
        report = verify_native(paths, arguments.steps, arguments.seed)
    else:
        report, differences = verify(paths, arguments.steps, arguments.seed, arguments.memoised)
    for difference in differences[:SHOWN]:
        _err.print(str(difference), markup=False)
    if arguments.json:
        _out.file.write(json.dumps(asdict(report)) + "\n")
    else:
        for name, value in asdict(report).items():
            _out.print(f"{name.replace('_', ' '):<18} {value if isinstance(value, str) else f'{value:,}'}")
    return int(bool(differences) or report.walkthroughs_won < report.games)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    main()
