"""Rollouts by several processes: what they bring back, and what happens where one of them fails."""

import os
from typing import Any

import pytest
import torch

from a2rl.handout.players import Columns, Players


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


def test_each_process_plays_its_share_with_the_weights_of_now_and_the_order_is_that_of_the_names() -> None:
    model, players, names = Model(1, 1, bias=False), Players(play, 3), [f"game {number}" for number in range(8)]
    threads = torch.get_num_threads()
    for weight in (2.0, 3.0):
        torch.nn.init.constant_(model.weight, weight)
        columns = players.play(model, None, names, seed=10)
        assert columns["name"] == names
        assert set(columns["weight"]) == {weight}
        assert [len({process for process in columns["process"][share::3]}) for share in range(3)] == [1, 1, 1]
        assert len(set(columns["process"])) == 3
        assert set(columns["threads"]) == {1}
        assert columns["seed"][:4] == [10, 11, 12, 10], "no two of them draw the same numbers"
    assert torch.get_num_threads() == threads


def test_there_may_be_fewer_names_than_processes() -> None:
    assert Players(play, 3).play(Model(1, 1), None, ["only one"], seed=0)["name"] == ["only one"]


def test_one_process_plays_alone() -> None:
    assert set(Players(play, 1).play(Model(1, 1), None, ["a", "b"], seed=0)["process"]) == {os.getpid()}


def test_what_a_process_raises_is_raised_here_and_nothing_of_that_time_is_left_over() -> None:
    def fussy(model: Model, tokenizer: Any, names: list[str], seed: int) -> Columns:
        if "bad" in names:
            raise ValueError("no such game: bad")
        return play(model, tokenizer, names, seed)

    players, model = Players(fussy, 3), Model(1, 1)
    for names in (["bad", "good", "good"], ["good", "bad", "good"], ["good", "good", "bad"]):
        with pytest.raises(ValueError, match="no such game"):
            players.play(model, None, names, seed=0)
        assert players.play(model, None, ["a", "b", "c"], seed=0)["name"] == ["a", "b", "c"]


def test_a_process_that_dies_is_an_error_and_nobody_waits_for_it() -> None:
    here = os.getpid()

    def deadly(model: Model, tokenizer: Any, names: list[str], seed: int) -> Columns:
        if os.getpid() != here:
            os._exit(9)
        return play(model, tokenizer, names, seed)

    players = Players(deadly, 2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="has died"):
            players.play(Model(1, 1), None, ["a", "b"], seed=0)
