"""Tests that the native ALFWorld engine, the stock engine and the memoised stock engine play games identically."""

import json
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tasks.alfworld import mini
from tasks.alfworld.alfred import Game
from tasks.alfworld.alfred.problem import KINDS, Kind
from tests.alfworld.kitchen import write_kitchen
from tests.alfworld.stock import StockPlay, memoised
from tests.alfworld.verify import compare
from tests.alfworld.walks import walk

pytest.importorskip("textworld", reason="TextWorld is not installed: it needs a C compiler")
MINI_GAMES = 20
REAL_GAMES = 3


def commands_for(path: Path, steps: int) -> list[str]:
    return walk(Game.load(path), random.Random(path.parent.name), steps)


@pytest.fixture(scope="module")
def mini_games(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("games")
    return [
        mini.write(household, folder / str(index))
        for index, household in enumerate(mini.generate(MINI_GAMES, 11, "train"))
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_agree_on_everything_peculiar(kind: Kind, tmp_path: Path) -> None:
    path = write_kitchen(tmp_path / kind, kind)
    with memoised():
        steps, difference = compare(path, commands_for(path, 150))
    assert difference is None
    assert steps == 150


@pytest.mark.heavy
def test_both_engines_agree_on_mini_games(mini_games: list[Path]) -> None:
    with memoised():
        for path in mini_games:
            assert compare(path, commands_for(path, 30))[1] is None


@pytest.mark.heavy
def test_both_engines_agree_on_real_games(shared_data: Path, tmp_path: Path) -> None:
    archive = shared_data / "alfworld" / "valid_seen.tar.xz"
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    with tarfile.open(archive) as packed:
        members = [member for member in packed.getmembers() if member.name.endswith("game.tw-pddl")]
        chosen = random.Random(0).sample(members, REAL_GAMES)
        for member in chosen:
            content = packed.extractfile(member)
            assert content is not None
            (tmp_path / member.name).parent.mkdir(parents=True)
            (tmp_path / member.name).write_bytes(content.read())
    with memoised():
        for member in chosen:
            path = tmp_path / member.name
            assert compare(path, commands_for(path, 30))[1] is None


def test_memoising_changes_nothing(mini_games: list[Path]) -> None:
    def story(path: Path) -> list[object]:
        with StockPlay(path) as play:
            told: list[object] = [play.intro, play.admissible()]
            for command in commands_for(path, 12):
                told += [play.step(command), play.admissible(), play.won]
            return told

    for path in mini_games[:2]:
        as_it_is = story(path)
        with memoised():
            assert story(path) == as_it_is
            assert story(path) == as_it_is  # now everything is memoised


def test_the_stock_engine_leaves_this_process_as_it_was(
    mini_games: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    argv, stdout = sys.argv, sys.stdout
    with StockPlay(mini_games[0]) as play:
        play.step("look")
    assert (sys.argv, sys.stdout) == (argv, stdout)
    assert capfd.readouterr() == ("", "")


@pytest.mark.heavy
def test_verify_prints_one_json_object_and_says_what_it_compared(mini_games: list[Path], repository: Path) -> None:
    folder = str(mini_games[0].parent.parent)
    command = [
        sys.executable,
        "-m",
        "tests.alfworld.verify",
        folder,
        "--games",
        "2",
        "--steps",
        "5",
        "--memoised",
        "--json",
    ]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["games"], report["differences"], report["walkthroughs_won"]) == (2, 0, 2)
    assert report["steps"] >= 10
    assert report["speed_ratio"] > 10
    assert report["load_ratio"] > 1


def test_verify_says_what_is_wrong_with_the_folder(tmp_path: Path, repository: Path) -> None:
    for folder, message in ((tmp_path / "nowhere", "folder not found"), (tmp_path, "no game.tw-pddl below")):
        command = [sys.executable, "-m", "tests.alfworld.verify", str(folder)]
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())


def test_a_single_wrong_word_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_kitchen(tmp_path / "kitchen")
    monkeypatch.setattr("tasks.alfworld.alfred.play.EMPTY_HANDED", "You carry nothing.")
    with memoised():
        steps, difference = compare(path, ["look", "inventory", "help"])
    assert difference is not None
    assert (steps, difference.what, difference.commands) == (2, "observation", ("look", "inventory"))
    assert "You carry nothing." in str(difference)
