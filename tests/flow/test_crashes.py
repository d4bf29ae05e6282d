"""One kill -9 of each part in the quick suite, ten of each in the slow one."""

import random

import pytest

from tests.flow.checkout import Checkout
from tests.flow.crashes import VICTIMS, crash_round


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("crashes") / "a2rl", {"steady": ""})


@pytest.mark.parametrize("victim", ["flow", "service+worker", "agent"])
def test_after_a_kill_nothing_accepted_is_lost_nothing_is_graded_twice_and_the_run_is_whole(
    checkout: Checkout, victim: str
) -> None:
    assert crash_round(checkout, "steady", victim, random.Random(), submissions=3).problem == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", VICTIMS)
def test_the_same_holds_ten_times_at_random_moments(checkout: Checkout, victim: str) -> None:
    rounds = [crash_round(checkout, "steady", victim, random.Random(seed)) for seed in range(10)]
    assert [each for each in rounds if each.problem] == []
