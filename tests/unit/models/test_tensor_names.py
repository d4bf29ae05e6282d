"""Tests that the base model's tensors are found, whatever their names are, and that nothing else passes for them."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from a2rl.core.errors import InvalidSubmissionError
from a2rl.models.checkpoint import Tensor
from a2rl.models.tensor_names import find_weights

EXPERTS, ROWS, COLUMNS = 3, 4, 5
FILE = Path("model.safetensors")


def stored(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Returns tensors of float32 that are behind one another in a file."""
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = Tensor(FILE, "F32", shape, start, 4 * prod(shape))
        start += found[name].size
    return found


def base(*parts: str) -> dict[str, Tensor]:
    """Returns the tensors of a base model with these for each expert."""
    shapes = {part: (COLUMNS, ROWS) if part in {"down_proj", "w2"} else (ROWS, COLUMNS) for part in parts}
    return stored({f"l.experts.{each}.{part}.weight": shapes[part] for each in range(EXPERTS) for part in parts})


GATE_UP = {"l.experts.gate_up_proj": (EXPERTS, 2 * ROWS, COLUMNS)}
DOWN = {"l.experts.down_proj": (EXPERTS, COLUMNS, ROWS)}
GATED = base("gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("parts", "names"),
    [(("gate_proj", "up_proj", "down_proj"), (*GATE_UP, *DOWN)), (("w1", "w3", "w2"), (*GATE_UP, *DOWN)),
     (("up_proj", "down_proj"), ("l.experts.up_proj", *DOWN))],
)  # fmt: skip
def test_all_experts_of_a_layer_may_be_one_tensor(parts: tuple[str, ...], names: tuple[str, ...]) -> None:
    shapes = GATE_UP | DOWN | {"l.experts.up_proj": (EXPERTS, ROWS, COLUMNS)}
    found = find_weights(stored({f"module.{name}": shapes[name] for name in names}), base(*parts)).tensors
    assert found.keys() == base(*parts).keys()
    size = 4 * ROWS * COLUMNS
    rows_then_columns = [f"l.experts.{each}.{part}.weight" for each in range(EXPERTS) for part in parts[:-1]]
    columns_then_rows = [f"l.experts.{each}.{parts[-1]}.weight" for each in range(EXPERTS)]
    starts = {name: place * size for place, name in enumerate(rows_then_columns + columns_then_rows)}
    assert {name: (each.start, each.size) for name, each in found.items()} == {
        name: (start, size) for name, start in starts.items()
    }


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ({"l.experts.gate_up_proj": (EXPERTS - 1, 2 * ROWS, COLUMNS)} | DOWN,
         "2 weights of the base model are missing, such as l.experts.2.gate_proj.weight"),
        ({"l.experts.gate_up_proj": (EXPERTS + 1, 2 * ROWS, COLUMNS)} | DOWN, "such as l.experts.gate_up_proj"),
        ({"l.experts.gate_up_proj": (EXPERTS, 2 * ROWS + 1, COLUMNS)} | DOWN, "such as l.experts.gate_up_proj"),
        ({"l.experts.gate_up_proj": (EXPERTS, COLUMNS, 2 * ROWS)} | DOWN, "such as l.experts.gate_up_proj"),
        ({"l.experts.gate_up_proj": (EXPERTS, 2 * ROWS * COLUMNS)} | DOWN, "such as l.experts.gate_up_proj"),
        ({"k.experts.gate_up_proj": (EXPERTS, 2 * ROWS, COLUMNS)} | DOWN, "such as k.experts.gate_up_proj"),
        (GATE_UP | DOWN | {"l.experts.0.up_proj.weight": (ROWS, COLUMNS)}, "such as l.experts.gate_up_proj"),
        (GATE_UP | DOWN | {"l.experts.up_proj": (EXPERTS, ROWS, COLUMNS)}, "such as l.experts.up_proj"),
    ],
)  # fmt: skip
def test_other_tensors_of_experts_are_refused(shapes: dict[str, tuple[int, ...]], why: str) -> None:
    with pytest.raises(InvalidSubmissionError, match=why):
        find_weights(stored(shapes), GATED)


def test_a_number_of_experts_that_no_model_has_costs_nothing() -> None:
    [name] = GATE_UP
    huge = replace(stored(GATE_UP)[name], dtype="X", shape=(10**15, 2 * ROWS, COLUMNS))
    for dtype in ("X", "F32"):
        with pytest.raises(InvalidSubmissionError, match=f"such as {name}"):
            find_weights({**stored(DOWN), name: replace(huge, dtype=dtype)}, GATED)


TIED = {"model.embed_tokens.weight": (ROWS, COLUMNS), "model.norm.weight": (COLUMNS,)}
UNTIED = TIED | {"lm_head.weight": (ROWS, COLUMNS)}


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize(("named", "tied"), [(TIED, None), (TIED, True), (UNTIED, True)])
def test_a_tied_head_alone_is_the_embedding(named: dict[str, tuple[int, ...]], tied: bool | None, prefix: str) -> None:
    submitted = stored({f"{prefix}{name}": shape for name, shape in UNTIED.items() if "embed" not in name})
    found = find_weights(submitted, stored(named), tied)
    assert (found.tensors.keys(), found.head) == (TIED.keys(), None)
    assert found.tensors["model.embed_tokens.weight"] == submitted[f"{prefix}lm_head.weight"]


@pytest.mark.parametrize(
    ("rows", "tied", "why"),
    [(ROWS, False, "1 weights of the base model are missing, such as model.embed"), (ROWS + 1, True, "was resized")],
)
def test_a_head_that_cannot_be_the_embedding_is_refused(rows: int, tied: bool, why: str) -> None:
    submitted = stored({"lm_head.weight": (rows, COLUMNS), "model.norm.weight": (COLUMNS,)})
    with pytest.raises(InvalidSubmissionError, match=why):
        find_weights(submitted, stored(UNTIED), tied)
