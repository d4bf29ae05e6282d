from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from a2rl.models.checkpoint import weights_digest
from a2rl.provenance import check
from a2rl.provenance.check import Tries, compare, count_tries, known_models
from a2rl.provenance.kinds import Kind, Provenance
from a2rl.provenance.trace import Arrangement, draw, roughness, share_kept
from tests import provenance_models as make
from tests.model_families import FAMILIES
from tests.provenance_models import Origin, State
from tests.run_maker import checkout

TEXTS = tuple(f"Question: what is {n} and {n + 3}? Answer: {2 * n + 3}, since {n} is {n}." for n in range(60))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    folder = tmp_path_factory.mktemp("family") / "qwen"
    return Origin(FAMILIES["qwen2.5-0.5b"].build(folder), TEXTS, torch.bfloat16)


@pytest.fixture(scope="module")
def base(origin: Origin) -> State:
    return make.stored_state(origin.base)


@pytest.fixture(scope="module")
def known(origin: Origin) -> State:
    return origin.tuned(3e-3, 25, seed=7)


@pytest.fixture
def judge(origin: Origin, tmp_path: Path) -> Callable[[State], Provenance]:
    def judged(state: State) -> Provenance:
        folder = origin.save(state, tmp_path / "checkpoint")
        return compare(folder, origin.base, weights_digest(folder))

    return judged


def test_a_large_adapter_is_a_descendant(origin: Origin, judge: Callable[[State], Provenance]) -> None:
    assert judge(origin.adapted(1e-2, 10, seed=1, rank=64)).kind is Kind.DESCENDANT


def test_hard_training_with_muon_keeps_nearly_all_rows(origin: Origin, judge: Callable[[State], Provenance]) -> None:
    found = judge(origin.orthogonalised(1e-2, 60, seed=1))
    assert not found.foreign
    assert (found.kept or 0.0) > 0.95


@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_a_fine_tuned_model_is_a_descendant(origin: Origin, judge: Callable[[State], Provenance], rate: float) -> None:
    found = judge(origin.tuned(rate, 20, seed=1))
    assert found.kind is Kind.DESCENDANT
    assert found.kept == 1.0


def test_a_merged_adapter_is_a_descendant(origin: Origin, judge: Callable[[State], Provenance]) -> None:
    assert judge(origin.adapted(2e-3, 10, seed=1, rank=4)).kind is Kind.DESCENDANT


def test_steps_of_grpo_make_a_descendant(origin: Origin, judge: Callable[[State], Provenance]) -> None:
    assert judge(origin.reinforced(1e-3, 3, seed=1)).kind is Kind.DESCENDANT


def test_the_base_model_is_recognised(base: State, judge: Callable[[State], Provenance]) -> None:
    assert judge(base).kind is Kind.BASE


@pytest.mark.parametrize("size", [0.01, 0.1])
def test_noise_is_no_training(base: State, judge: Callable[[State], Provenance], size: float) -> None:
    found = judge(make.noisy(base, size, seed=1))
    assert found.kind is Kind.NEAR_COPY
    assert found.delta == pytest.approx(size, rel=0.3)


def test_rounding_is_no_training(base: State, judge: Callable[[State], Provenance]) -> None:
    assert judge(make.rounded(base, bits=8)).kind is Kind.NEAR_COPY


@pytest.mark.parametrize("change", [make.neurons_permuted, make.hidden_permuted, make.scaled, make.norms_folded])
def test_rearranged_weights_are_recognised(
    base: State, judge: Callable[[State], Provenance], change: Callable[[State, int], State]
) -> None:
    found = judge(change(base, 1))
    assert found.kind is Kind.NEAR_COPY, found
    assert not found.foreign


def test_a_permuted_model_names_how_its_rows_were_found(base: State, judge: Callable[[State], Provenance]) -> None:
    found = judge(make.neurons_permuted(base, 1))
    ways = {trace.name.split(".")[-2]: trace.arrangement for trace in found.traces}
    assert ways["gate_proj"] is Arrangement.ROWS
    assert ways["down_proj"] is Arrangement.COLUMNS
    assert ways["q_proj"] is Arrangement.IN_PLACE


def test_random_weights_are_foreign(origin: Origin, judge: Callable[[State], Provenance]) -> None:
    found = judge(origin.foreign(seed=5))
    assert found.kind is Kind.FOREIGN
    assert found.kept is not None
    assert found.kept < 0.2


def test_the_embedding_alone_does_not_make_a_descendant(
    origin: Origin, base: State, judge: Callable[[State], Provenance]
) -> None:
    embeddings = {name: base[name] for name in base if "embed" in name}
    assert judge({**origin.foreign(seed=5), **embeddings}).kind is Kind.FOREIGN


def test_a_foreign_matrix_is_named(base: State, judge: Callable[[State], Provenance]) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    found = judge(make.reinitialised(base, [name], seed=1))
    assert found.kind is Kind.PART_FOREIGN
    assert found.foreign == (name,)


@pytest.mark.parametrize(("share", "kind"), [(1.0, Kind.SIBLING), (0.4, Kind.MERGE)])
def test_known_models_are_recognised_by_their_direction(
    origin: Origin, base: State, known: State, tmp_path: Path, share: float, kind: Kind
) -> None:
    """That is the direction of the difference of their weights."""
    folder = origin.save(make.mixed([(share, known), (1 - share, base)]), tmp_path / "checkpoint")
    others = {"instruct": origin.save(known, tmp_path / "known")}
    found = compare(folder, origin.base, weights_digest(folder), others)
    assert found.kind is kind, found.why
    assert "instruct" in found.why


def test_factors_that_change_nothing_hide_no_known_model(
    origin: Origin, base: State, known: State, tmp_path: Path
) -> None:
    """With twice the queries and half the keys, a model computes the same."""
    scaled = dict(known)
    for name, factor in (("q_proj.weight", 2.0), ("k_proj.weight", 0.5)):
        scaled |= {key: factor * tensor for key, tensor in known.items() if key.endswith(name)}
    folder = origin.save(scaled, tmp_path / "checkpoint")
    others = {"instruct": origin.save(known, tmp_path / "known")}
    assert compare(folder, origin.base, weights_digest(folder), others).kind is Kind.SIBLING


def test_folded_norms_hide_no_known_model(origin: Origin, base: State, known: State, tmp_path: Path) -> None:
    """They change more than a little training did."""
    near = make.mixed([(0.02, known), (0.98, base)])
    others = {"instruct": origin.save(near, tmp_path / "known", torch.float32)}
    folder = origin.save(make.norms_folded(near, 1), tmp_path / "checkpoint", torch.float32)
    found = compare(folder, origin.base, weights_digest(folder), others)
    assert found.kind is Kind.SIBLING, found.why


@pytest.mark.parametrize("share", [0.1, 0.4, 1.0])
def test_permuted_neurons_hide_no_known_model(origin: Origin, known: State, tmp_path: Path, share: float) -> None:
    """They differ by more than training did."""
    near = make.mixed([(0.2, known), (0.8, make.stored_state(origin.base))])
    others = {"instruct": origin.save(near, tmp_path / "known")}
    folder = origin.save(make.neurons_permuted(near, 1, share), tmp_path / "checkpoint")
    assert compare(folder, origin.base, weights_digest(folder), others).kind is Kind.SIBLING


def test_permuted_training_is_flagged_whatever_the_score(known: State, judge: Callable[[State], Provenance]) -> None:
    found = judge(make.hidden_permuted(known, 1))
    assert found.kind is Kind.UNKNOWN, found
    assert not found.may_be_trained


@pytest.mark.parametrize("change", [make.scaled, make.norms_folded])
@pytest.mark.parametrize("order", [make.neurons_permuted, make.hidden_permuted])
def test_factors_and_permutations_hide_no_noise(
    base: State, judge: Callable[[State], Provenance], change: Callable[..., State], order: Callable[..., State]
) -> None:
    found = judge(order(change(make.noisy(base, 0.01, seed=1), 1), 1))
    assert found.kind is Kind.NEAR_COPY, found
    assert not found.may_be_trained


def test_folded_norms_hide_no_structured_base_model(origin: Origin, tmp_path: Path) -> None:
    """Weights that are no white noise themselves, as those of real models, times a factor look trained."""
    state = origin.adapted(3e-2, 20, seed=1, rank=2)
    base = origin.save(state, tmp_path / "base")
    folder = origin.save(make.norms_folded(state, 1), tmp_path / "checkpoint")
    assert compare(folder, base, weights_digest(folder)).kind is Kind.NEAR_COPY


def test_training_of_ones_own_does_not_look_like_a_known_model(origin: Origin, known: State, tmp_path: Path) -> None:
    folder = origin.save(origin.adapted(3e-3, 15, seed=2, rank=4), tmp_path / "checkpoint")
    others = {"instruct": origin.save(known, tmp_path / "known")}
    assert compare(folder, origin.base, weights_digest(folder), others).kind is Kind.DESCENDANT


def test_other_weights_are_looked_at_in_other_rows() -> None:
    one, other = (draw(32, 10_000, digest, "lm_head.weight") for digest in ("a", "b"))
    assert not np.array_equal(one, other)
    assert np.array_equal(one, draw(32, 10_000, "a", "lm_head.weight"))
    assert len(set(one.tolist())) == 32


def test_of_few_rows_all_are_looked_at() -> None:
    assert draw(64, 40, "a", "x").tolist() == list(range(40))


def test_equal_base_rows_do_not_count_as_lost() -> None:
    rows = np.eye(8, 16)
    rows[3] = rows[2]
    assert share_kept(rows, rows) == 1.0


def test_rows_that_moved_in_one_direction_are_still_recognised() -> None:
    rng = np.random.default_rng(0)
    in_common = rng.standard_normal((64, 4)) @ rng.standard_normal((4, 128))  # rows of an embedding resemble each other
    base = in_common + rng.standard_normal((64, 128))
    moved = rng.uniform(1, 2, (64, 1)) * (base[1] - base[0])
    assert (share_kept(base + moved, base) or 0.0) > 0.95
    assert share_kept(base[::-1] + moved, base) == 0.0


def test_rows_of_zeros_are_not_kept() -> None:
    base = np.random.default_rng(0).standard_normal((64, 128))
    assert share_kept(np.zeros_like(base), base) == 0.0


@pytest.mark.parametrize("size", [20.0, 1e20])
def test_a_few_large_columns_make_no_row_a_base_row(size: float) -> None:
    """A zero in the norm before the matrix switches them off."""
    base, foreign = np.random.default_rng(0).standard_normal((2, 64, 2048))
    foreign[:, :20] = size * base[:, :20]
    assert (share_kept(foreign, base) or 0.0) < 0.2


@pytest.mark.parametrize("width", [128, 896, 2048])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
def test_a_part_of_the_columns_makes_no_row_a_base_row(width: int, share: float) -> None:
    base, foreign = np.random.default_rng(0).standard_normal((2, 64, width))
    foreign[:, : int(share * width)] = base[:, : int(share * width)]
    assert (share_kept(foreign, base) or 0.0) < 0.4


@pytest.mark.parametrize("width", [128, 896, 2048])
def test_a_change_of_three_times_their_length_keeps_rows(width: int) -> None:
    base, change = np.random.default_rng(0).standard_normal((2, 64, width))
    assert (share_kept(base + 3 * change, base) or 0.0) > 0.7


def test_rows_that_are_all_alike_tell_nothing() -> None:
    alike = np.full((64, 128), 0.3)
    assert share_kept(alike + 1, alike) is None


def test_noise_has_a_roughness_of_one_and_a_low_rank_has_more() -> None:
    rng = np.random.default_rng(0)
    base = rng.standard_normal((64, 256))
    noise = rng.standard_normal(base.shape)
    low = np.outer(rng.standard_normal(64), rng.standard_normal(256))
    white, spiked = roughness(base + 0.1 * noise, base), roughness(base + 0.1 * noise + 0.05 * low, base)
    assert white is not None
    assert spiked is not None
    assert white.value == pytest.approx(1.0, abs=0.15)
    assert white.is_noise
    assert spiked.value > 1.5
    assert not spiked.is_noise


def test_a_difference_with_equal_directions_is_no_noise() -> None:
    """The optimizer Muon makes such a difference."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((64, 128))
    left, _, right = np.linalg.svd(rng.standard_normal(base.shape), full_matrices=False)
    flat = roughness(base + 0.1 * (left @ right), base)
    assert flat is not None
    assert flat.value < 0.7
    assert not flat.is_noise


@pytest.mark.parametrize("shape", [(8, 8), (16, 32), (64, 64), (64, 896)])
def test_noise_of_any_size_is_recognised(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    base = rng.standard_normal(shape)
    found = [roughness(base + 0.1 * rng.standard_normal(shape), base) for _ in range(200)]
    assert sum(each is not None and each.is_noise for each in found) >= 195


def test_copies_of_one_checkpoint_are_one_try(origin: Origin, base: State, tmp_path: Path) -> None:
    trained = origin.tuned(3e-3, 15, seed=3)
    states = [make.noisy(base, 0.01, 1), trained, make.noisy(trained, 0.01, 2), make.noisy(trained, 0.01, 3)]
    states.append(origin.tuned(3e-3, 15, seed=4))
    folders = {f"{place}": origin.save(state, tmp_path / f"{place}") for place, state in enumerate(states)}
    tries = count_tries(folders, origin.base)
    assert tries.of_base == ("0",)
    assert tries.groups == (("1", "2", "3"), ("4",))
    assert tries.effective == 3


@pytest.mark.parametrize("change", [make.norms_folded, make.hidden_permuted])
def test_rearranged_copies_are_one_try(origin: Origin, tmp_path: Path, change: Callable[[State, int], State]) -> None:
    trained = origin.tuned(3e-3, 15, seed=3)
    states = [change(make.noisy(trained, 0.001, seed), seed) for seed in range(3)]
    folders = {f"{place}": origin.save(state, tmp_path / f"{place}") for place, state in enumerate(states)}
    assert count_tries(folders, origin.base).groups == (("0", "1", "2"),)


def test_copies_that_are_submitted_in_turn_are_one_try(origin: Origin, tmp_path: Path) -> None:
    pair = [origin.tuned(3e-3, 15, seed=seed) for seed in (3, 4)]
    states = [make.noisy(trained, 0.001, seed) for seed in range(3) for trained in pair]
    folders = {f"{place}": origin.save(state, tmp_path / f"{place}") for place, state in enumerate(states)}
    tries = count_tries(folders, origin.base)
    assert tries == Tries((), (("0", "2", "4"), ("1", "3", "5")), 0)


def test_of_many_submissions_all_are_compared(origin: Origin, base: State, tmp_path: Path) -> None:
    folders: dict[str, Path] = {}
    for place in range(13):
        trained = origin.tuned(3e-3, 3, seed=place)
        folders |= {f"{place}": origin.save(trained, tmp_path / f"{place}")}
        folders |= {f"{place} again": origin.save(make.noisy(trained, 0.0005, place), tmp_path / f"{place}-again")}
    tries = count_tries(folders, origin.base)
    assert (tries.not_compared, tries.effective) == (0, 13)


def test_noise_like_checkpoints_that_are_better_are_tries(origin: Origin, base: State, tmp_path: Path) -> None:
    """They are better than the base model."""
    trained = make.noisy(base, 0.05, 1)
    states = [trained, make.noisy(trained, 0.001, 2), make.noisy(base, 0.05, 3), make.noisy(base, 0.05, 4)]
    folders = {f"{place}": origin.save(state, tmp_path / f"{place}") for place, state in enumerate(states)}
    tries = count_tries(folders, origin.base, better={"0", "1", "2"})
    assert tries.of_base == ("3",)
    assert tries.groups == (("0", "1"), ("2",))


def test_training_at_the_low_rates_of_rl_makes_no_copies(origin: Origin, base: State, tmp_path: Path) -> None:
    trained = [origin.tuned(1e-6, steps, seed=1) for steps in (10, 20, 30)]
    copies = [make.noisy(base, 1e-4, seed) for seed in range(2)]
    folders = {
        f"{place}": origin.save(state, tmp_path / f"{place}", torch.float32)
        for place, state in enumerate([*trained, *copies])
    }
    assert compare(folders["0"], origin.base, "0").kind is Kind.BASE
    assert count_tries(folders, origin.base) == Tries(("3", "4"), (("0",), ("1",), ("2",)), 0)
    assert count_tries(folders, origin.base, better={"3"}).of_base == ("4",)


def test_the_list_of_known_models_can_be_extended(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "list.yaml"
    listed.write_text(f"- {{base: tiny, known: {origin.base}}}\n- {{base: tiny, known: nobody/has-this}}\n")
    monkeypatch.setattr(check, "LIST", listed)
    found = known_models("tiny", checkout(tmp_path))
    assert list(found.here.values()) == [origin.base]
    assert found.elsewhere == ("nobody/has-this",)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
