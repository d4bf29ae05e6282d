"""How a machine is shared by runs side by side."""

import os

import pytest

from flows.policies import on_cores, shares_of_cores


@pytest.mark.parametrize(
    ("cores", "runs", "shares"),
    [
        ({0, 1}, 0, []),
        ({0, 1}, 1, [[0, 1]]),
        ({0, 1}, 2, [[0], [1]]),
        ({4, 5, 6, 7, 8}, 2, [[4, 5], [6, 7]]),
        ({0, 1}, 3, [[0, 1]] * 3),
    ],
)
def test_cores_are_dealt_out_evenly_and_shared_where_there_are_too_few(
    cores: set[int], runs: int, shares: list[list[int]]
) -> None:
    assert shares_of_cores(cores, runs) == shares


def test_a_run_keeps_to_its_cores_and_leaves_the_others_as_they_were() -> None:
    before = os.sched_getaffinity(0)
    with on_cores({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
