"""Tests the estimate of how long an engine works on a grade."""

from typing import Any

import pytest

from a2rl.sampling.engine_params import EngineMemory
from a2rl.sampling.grade_time import DEVICES, Device, GradeTime, Work, device_named, time_of_grade

MEMORY = EngineMemory(
    context=4_096, cache_tokens=10_000, answers=8, weights_bytes=2_000, cache_bytes=50_000, step_bytes=0
)
"""A model of 1,000 parameters; a token takes 5 bytes of the cache."""
SLOW = Device(
    read_flops=2_000, write_flops=1_000, weights_per_s=2_000, cache_per_s=1e12, shared_per_s=1e12, step_s=0.5,
    turn_s=0, block=0, load_per_s=1_000,
)  # fmt: skip
"""It reads a token in a second, writes one in two, and makes a step in one and a half."""


def timed(device: Device = SLOW, **work: Any) -> GradeTime:
    few: dict[str, Any] = {"items": 1, "prompt": 10, "fresh": 10, "answer": 4, "longest": 4}
    return time_of_grade(Work(**few | work), MEMORY, "bfloat16", device)


def test_each_part_is_what_its_tokens_take() -> None:
    time = timed()
    assert (time.load_s, time.read_s, time.write_s) == pytest.approx((2, 10, 4 * 1.5 + 4 * 2))
    assert time.total_s == pytest.approx(26)


def test_what_prompts_share_is_not_read_again() -> None:
    assert timed(items=20, prompt=310).read_s == pytest.approx(20 * 10)
    assert timed(items=20, later=5).read_s == pytest.approx(20 * 15)


def test_each_turn_reads_the_rest_of_a_block_again() -> None:
    in_blocks = SLOW.model_copy(update={"turn_s": 0.25, "block": 16})
    assert timed(in_blocks, items=20, turns=3).read_s == pytest.approx(20 * (10 + 3 * (8 + 0.25)))


def test_answers_in_progress_share_the_steps() -> None:
    assert timed(items=20).write_s == pytest.approx(4 * 1.5 + 20 * 4 * 2)
    assert timed(items=20, longest=9).write_s == pytest.approx(9 * 1.5 + 20 * 4 * 2)


def test_only_as_many_are_in_progress_as_the_cache_holds() -> None:
    time = timed(items=100, prompt=1_400, fresh=400, later=40, answer=60, longest=60)
    assert time.at_once == 20
    assert time.write_s == pytest.approx(100 * 60 * 1.5 / 20 + 100 * 60 * 2)
    assert timed(items=1_000, fresh=1, answer=1, longest=1).at_once == 256


def test_each_token_of_an_answer_reads_the_text_before_it() -> None:
    """The text grows during an episode. What other texts begin with, too, may be read faster."""
    slow_cache = SLOW.model_copy(update={"cache_per_s": 5.0, "shared_per_s": 10.0})
    extra = timed(slow_cache, prompt=110, later=6).write_s - timed(prompt=110, later=6).write_s
    assert extra == pytest.approx(4 * (100 / 2 + 10 + (6 + 4) / 2))


def test_gpus_are_known_by_a_part_of_their_name() -> None:
    assert device_named("NVIDIA H100 80GB HBM3") == DEVICES["H100"]
    assert device_named("Fake") is None
