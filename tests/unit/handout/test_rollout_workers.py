"""Tests rollouts by several processes: their results, and failures of single processes."""

import os
import pickle
from typing import Any

import pytest
import torch

from a2rl.handout.rollout_workers import Columns, RolloutWorkers


class Model(torch.nn.Linear):
    device = torch.device("cpu")


def play(model: Model, tokenizer: Any, names: list[str], seed: int) -> Columns:
    return {
        "name": list(names),
        "weight": [model.weight.item()] * len(names),
        "process": [os.getpid()] * len(names),
        "threads": [torch.get_num_threads()] * len(names),
        "seed": [seed] * len(names),
    }


def test_each_process_plays_its_share_with_current_weights() -> None:
    """The results are in the order of the names."""
    model, workers, names = Model(1, 1, bias=False), RolloutWorkers(play, 3), [f"game {number}" for number in range(8)]
    threads = torch.get_num_threads()
    for weight in (2.0, 3.0):
        torch.nn.init.constant_(model.weight, weight)
        columns = workers.play(model, None, names, seed=10)
        assert columns["name"] == names
        assert set(columns["weight"]) == {weight}
        assert [len({process for process in columns["process"][share::3]}) for share in range(3)] == [1, 1, 1]
        assert len(set(columns["process"])) == 3
        assert set(columns["threads"]) == {1}
        assert columns["seed"][:4] == [10, 11, 12, 10], "no two of them draw the same numbers"
    assert torch.get_num_threads() == threads


def test_there_may_be_fewer_names_than_processes() -> None:
    assert RolloutWorkers(play, 3).play(Model(1, 1), None, ["only one"], seed=0)["name"] == ["only one"]


def test_one_process_plays_alone() -> None:
    assert set(RolloutWorkers(play, 1).play(Model(1, 1), None, ["a", "b"], seed=0)["process"]) == {os.getpid()}


def test_what_a_process_raises_is_raised_here() -> None:
    """Nothing of that time is left over."""

    def fussy(model: Model, tokenizer: Any, names: list[str], seed: int) -> Columns:
        if "bad" in names:
            raise ValueError("no such game: bad")
        return play(model, tokenizer, names, seed)

    workers, model = RolloutWorkers(fussy, 3), Model(1, 1)
    for names in (["bad", "good", "good"], ["good", "bad", "good"], ["good", "good", "bad"]):
        with pytest.raises(ValueError, match="no such game"):
            workers.play(model, None, names, seed=0)
        assert workers.play(model, None, ["a", "b", "c"], seed=0)["name"] == ["a", "b", "c"]


def test_a_process_that_dies_is_an_error_and_nobody_waits_for_it() -> None:
    here = os.getpid()

    def deadly(model: Model, tokenizer: Any, names: list[str], seed: int) -> Columns:
        if os.getpid() != here:
            os._exit(9)
        return play(model, tokenizer, names, seed)

    workers = RolloutWorkers(deadly, 2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="has died"):
            workers.play(Model(1, 1), None, ["a", "b"], seed=0)


class Cut:
    """An answer that cannot be unpickled, as if its process died while it was read."""

    def __reduce__(self) -> Any:
        return _end_of_file, ()


def _end_of_file() -> None:
    raise OSError("got end of file during message")


class Unreadable:
    def __reduce__(self) -> Any:
        return _not_read, ()


def _not_read() -> None:
    raise pickle.UnpicklingError("pickle data was truncated")


@pytest.mark.parametrize("broken", [Cut, Unreadable])
def test_after_a_broken_answer_nobody_gets_an_old_one(broken: type) -> None:
    def play_or_break(model: Model, tokenizer: Any, names: list[str], seed: int) -> Columns:
        return {"name": [broken()]} if names == ["cut"] else play(model, tokenizer, names, seed)

    workers, model = RolloutWorkers(play_or_break, 4), Model(1, 1)
    with pytest.raises((RuntimeError, pickle.UnpicklingError)):
        workers.play(model, None, ["old 0", "cut", "old 2", "old 3"], seed=0)
    names = ["new 0", "new 1", "new 2", "new 3"]
    assert workers.play(model, None, names, seed=0)["name"] == names


def test_a_process_that_was_killed_is_replaced_the_next_time() -> None:
    here = os.getpid()

    def deadly(model: Model, tokenizer: Any, names: list[str], seed: int) -> Columns:
        if os.getpid() != here and names == ["deadly"]:
            os._exit(9)
        return play(model, tokenizer, names, seed)

    workers, model = RolloutWorkers(deadly, 3), Model(1, 1)
    with pytest.raises(RuntimeError, match="has died"):
        workers.play(model, None, ["a", "deadly", "c"], seed=0)
    assert workers.play(model, None, ["d", "e", "f"], seed=0)["name"] == ["d", "e", "f"]


def test_what_is_raised_here_leaves_nothing_of_that_time_behind() -> None:
    here = os.getpid()

    def interrupted(model: Model, tokenizer: Any, names: list[str], seed: int) -> Columns:
        if os.getpid() == here and names == ["stop"]:
            raise KeyboardInterrupt
        return play(model, tokenizer, names, seed)

    workers, model = RolloutWorkers(interrupted, 3), Model(1, 1)
    with pytest.raises(KeyboardInterrupt):
        workers.play(model, None, ["stop", "old", "old"], seed=0)
    assert workers.play(model, None, ["d", "e", "f"], seed=0)["name"] == ["d", "e", "f"]
