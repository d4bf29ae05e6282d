"""The public and the private half of an eval set."""

import pytest

from a2rl.split import split_ids

IDS = [str(number) for number in range(101)]


@pytest.mark.parametrize("ids", [IDS, IDS[:2], IDS[:1], []])
def test_the_halves_are_disjoint_and_together_everything(ids: list[str]) -> None:
    public, private = (split_ids(ids, half, seed=3) for half in ("public", "private"))
    assert not set(public) & set(private)
    assert sorted(public + private) == sorted(ids)
    assert len(public) == len(ids) // 2


def test_all_is_everything_in_the_datas_order() -> None:
    assert split_ids(IDS, "all", seed=3) == IDS


def test_a_half_keeps_the_datas_order() -> None:
    for half in ("public", "private"):
        chosen = split_ids(IDS, half, seed=3)
        assert chosen == sorted(chosen, key=int)


def test_the_same_seed_gives_the_same_half_and_another_seed_another() -> None:
    assert split_ids(IDS, "public", seed=3) == split_ids(IDS, "public", seed=3)
    assert split_ids(IDS, "public", seed=3) != split_ids(IDS, "public", seed=4)


def test_the_halves_are_drawn_and_not_cut_in_the_middle() -> None:
    public = {int(each) for each in split_ids(IDS, "public", seed=3)}
    assert 15 < sum(number < 50 for number in public) < 35
