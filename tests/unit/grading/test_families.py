"""Tests that trained copies of real families' base models are accepted, and graded as the model that was saved.

`python -m tests.family_table` prints the same as a table.
"""

from pathlib import Path

import pytest

from tests.family_table import Bench
from tests.model_families import FAMILIES
from tests.ways_of_saving import DTYPES, WAYS

FAST = {
    ("qwen3-0.6b", "deepspeed", "float32"),
    ("qwen3-1.7b", "transformers, sharded", "bfloat16"),
    ("llama-2", "transformers", "float16"),
    ("mistral-v0.3", "fsdp", "bfloat16"),
    ("phi-3", "transformers", "bfloat16"),
    ("gpt-oss", "transformers, sharded", "float32"),
    ("gemma-3-270m", "torch.compile", "bfloat16"),
    ("qwen3-30b-a3b", "fsdp", "bfloat16"),
    ("gemma-2", "safetensors", "bfloat16"),
}
"""Each of what was refused before, and each way but TRL's, once."""
ROWS = [(family, way, dtype) for family in FAMILIES for way in WAYS for dtype in DTYPES]


@pytest.mark.parametrize(
    ("family", "way", "dtype"),
    [pytest.param(*row, marks=() if row in FAST else pytest.mark.slow, id=", ".join(row)) for row in ROWS],
)
def test_a_trained_copy_is_accepted_and_graded_as_saved(tmp_path: Path, family: str, way: str, dtype: str) -> None:
    cell = Bench(family, tmp_path).try_way(way, dtype)
    assert cell.accepted, cell.why
    assert cell.same_texts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_of_another_family_is_refused(tmp_path: Path, family: str) -> None:
    assert "submit the base model's architecture" in Bench(family, tmp_path).foreign()


@pytest.mark.parametrize("family", ["gemma-2", "llama-3.1", "gpt-oss"])
def test_the_base_model_itself_can_be_submitted(tmp_path: Path, family: str) -> None:
    bench = Bench(family, tmp_path)
    (bench.workspace / "copy").symlink_to(bench.base)  # not followed: the folder has to be real
    bench.base.rename(bench.workspace / "base")
    bench.base.symlink_to(bench.workspace / "base")
    bench.submit("base")
