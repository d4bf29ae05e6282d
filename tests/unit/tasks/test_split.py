"""Tests the public and the private half of an eval set."""

from collections import Counter

import pytest

from a2rl.task_api.split import sample_ids, split_ids

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


def test_the_same_seed_gives_the_same_half_and_another_another() -> None:
    assert split_ids(IDS, "public", seed=3) == split_ids(IDS, "public", seed=3)
    assert split_ids(IDS, "public", seed=3) != split_ids(IDS, "public", seed=4)


def test_the_halves_are_drawn_and_not_cut_in_the_middle() -> None:
    public = {int(each) for each in split_ids(IDS, "public", seed=3)}
    assert 15 < sum(number < 50 for number in public) < 35


@pytest.mark.parametrize("seed", range(5))
def test_both_halves_have_as_many_items_of_each_kind(seed: int) -> None:
    kinds = {each: "abcd"[min(3, int(each) // 7 % 5)] for each in IDS}
    public, private = (
        Counter(kinds[each] for each in split_ids(IDS, half, seed, kinds)) for half in ("public", "private")
    )
    assert all(abs(public[kind] - private[kind]) <= 1 for kind in "abcd")
    assert private.total() - public.total() == 1


def test_rare_kinds_do_not_pile_up_in_one_half() -> None:
    kinds = {each: each for each in IDS}
    assert len(split_ids(IDS, "public", 3, kinds)) == 50
    assert split_ids(IDS, "public", 3, kinds) != split_ids(IDS, "public", 4, kinds)


def test_within_a_kind_the_halves_are_drawn() -> None:
    kinds = {each: str(int(each) % 2) for each in IDS}
    shares = [len(set(split_ids(IDS, "public", seed, kinds)) & set(IDS[:50])) for seed in range(20)]
    assert len(set(shares)) > 1
    assert all(10 <= share <= 40 for share in shares)


def test_a_sample_has_the_shares_of_the_kinds() -> None:
    kinds = {each: "rare" if int(each) < 10 else "common" for each in IDS}
    for seed in range(20):
        sample = sample_ids(IDS, 30, seed, kinds)
        assert len(sample) == 30
        assert sum(kinds[each] == "rare" for each in sample) in {30 * 10 // len(IDS), 30 * 10 // len(IDS) + 1}


def test_a_sample_keeps_the_order_and_its_seed_chooses_the_items() -> None:
    sample = sample_ids(IDS, 30, 7)
    assert sample == [each for each in IDS if each in set(sample)] == sample_ids(IDS, 30, 7)
    assert sample != sample_ids(IDS, 30, 8)
    assert sample_ids(IDS, len(IDS), 7) == IDS


def test_every_item_is_as_likely_to_be_in_a_sample() -> None:
    kinds = {each: "rare" if int(each) < 7 else "common" for each in IDS}
    drawn = Counter(each for seed in range(600) for each in sample_ids(IDS, 20, seed, kinds))
    expected = 600 * 20 / len(IDS)
    assert all(abs(drawn[each] - expected) < 5 * expected**0.5 for each in IDS)


@pytest.mark.parametrize("size", [1, 2, 7, 50, 99])
def test_a_sample_has_the_wanted_size_and_splits_into_halves(size: int) -> None:
    for seed in range(50):
        sample = sample_ids(IDS, size, seed)
        halves = [split_ids(sample, half, seed) for half in ("public", "private")]
        assert len(sample) == size
        assert sorted(halves[0] + halves[1], key=int) == sample
        assert len(halves[1]) - len(halves[0]) in {0, 1}
