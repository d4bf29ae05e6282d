"""Tests LoRA adapters as submissions: what is merged, what is refused, and that the merged model is what PEFT makes."""

import json
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import InvalidSubmissionError
from a2rl.core.settings import Settings
from a2rl.grading.adapters import _number, check_adapter, merge_adapter
from a2rl.grading.submission_checks import CheckedCopy, Requirements, copy_submission
from a2rl.grading.submitted_files import Source
from a2rl.models.checkpoint import weights_digest
from tests.run_maker import checkout
from tests.small_model import (
    HEAD,
    HEADS,
    HIDDEN,
    INNER,
    Weight,
    build_base_model,
    edit_json,
    read_weights,
    write_raw_safetensors,
    write_safetensors,
)

LAYER = "base_model.model.model.layers.0."
CONFIG = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "/nowhere", "r": 2, "lora_alpha": 4,
    "target_modules": ["q_proj", "down_proj"], "lora_dropout": 0.1, "bias": "none", "inference_mode": True,
    "init_lora_weights": True, "use_rslora": False, "use_dora": False, "rank_pattern": {}, "alpha_pattern": {},
    "modules_to_save": None, "fan_in_fan_out": False, "megatron_core": "megatron.core", "loftq_config": {},
}  # fmt: skip


def zeros(*shape: int, dtype: str = "F32") -> Weight:
    count = 1
    for each in shape:
        count *= each
    return Weight(dtype, shape, bytes(count * (4 if dtype == "F32" else 2)))


def tensors(rank: int = 2) -> dict[str, Weight]:
    return {
        LAYER + "self_attn.q_proj.lora_A.weight": zeros(rank, HIDDEN),
        LAYER + "self_attn.q_proj.lora_B.weight": zeros(HEADS * HEAD, rank),
        LAYER + "mlp.down_proj.lora_A.weight": zeros(rank, INNER),
        LAYER + "mlp.down_proj.lora_B.weight": zeros(HIDDEN, rank),
    }


def write_adapter(folder: Path, weights: dict[str, Weight] | None = None, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    write_safetensors(folder / "adapter_model.safetensors", tensors() if weights is None else weights)
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace" / "output").mkdir(parents=True)
    return tmp_path / "workspace"


@pytest.fixture
def adapter(workspace: Path) -> Path:
    """A valid adapter, which each test breaks in its own way."""
    return write_adapter(workspace / "output" / "v1")


@pytest.fixture
def submit(workspace: Path, base_model: Path, tmp_path: Path) -> Callable[[], CheckedCopy]:
    """Submits the adapter; merging ends with the check, so that no process is needed."""

    def check_only(folder: Path, base: Path, target: Path) -> str:
        shutil.copytree(base, target, dirs_exist_ok=True)
        return str(check_adapter(folder, base))

    source, required = Source(workspace, "output/v1"), Requirements(base_model, merge=check_only)
    return lambda: copy_submission(source, tmp_path / "kept", required)


def _huge_rank(folder: Path) -> None:
    write_adapter(folder, tensors(rank=INNER + 1), r=INNER + 1)


def _rank_of_nothing(folder: Path) -> None:
    write_adapter(folder, tensors(rank=0), r=0)


def _rank_that_is_not_the_declared_one(folder: Path) -> None:
    edit_json(folder / "adapter_config.json", r=1)


def _parts_that_do_not_fit(folder: Path) -> None:
    write_adapter(folder, tensors() | {LAYER + "self_attn.q_proj.lora_B.weight": zeros(16, 3)})


def _half_a_layer(folder: Path) -> None:
    weights = tensors()
    del weights[LAYER + "mlp.down_proj.lora_B.weight"]
    write_adapter(folder, weights)


def _foreign_tensor(folder: Path) -> None:
    write_adapter(folder, tensors() | {"base_model.model.model.embed_tokens.weight": zeros(280, HIDDEN)})


def _embedding(folder: Path) -> None:
    write_adapter(folder, tensors() | {"base_model.model.model.embed_tokens.lora_embedding_A": zeros(2, 280)})


def _name_with_odd_characters(folder: Path) -> None:
    write_adapter(folder, {"base_model.model.(a+)+$.lora_A.weight": zeros(2, 4)})


def _integers(folder: Path) -> None:
    write_adapter(folder, tensors() | {LAYER + "mlp.down_proj.lora_A.weight": zeros(2, INNER)._replace(dtype="I32")})


def _not_finite(folder: Path) -> None:
    nan = zeros(2, INNER)._replace(data=b"\xff" * 4 * 2 * INNER)
    write_adapter(folder, tensors() | {LAYER + "mlp.down_proj.lora_A.weight": nan})


def _no_weights(folder: Path) -> None:
    write_adapter(folder, {})


def _regular_expression(folder: Path) -> None:
    edit_json(folder / "adapter_config.json", rank_pattern={"(.*)+x": 2})


def _config_of_60_mb(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"a": "' + "x" * (60 << 20) + '"}')


def _dora_without_magnitudes(folder: Path) -> None:
    edit_json(folder / "adapter_config.json", use_dora=True)


def _pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def _beside_a_whole_model(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def _without_config(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


def _other_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')


def with_config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "adapter_config.json", **changes)


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "a huge rank": (_huge_rank, "rank 33.*too large"),
    "a rank of nothing": (_rank_of_nothing, "not a sensible number"),
    "a rank that is not the declared one": (
        _rank_that_is_not_the_declared_one,
        "rank 2, which is not that of adapter_con",
    ),
    "a rank that is a text": (with_config(r="2"), "not a sensible number"),
    "an infinite alpha": (with_config(lora_alpha=1e300), "not a sensible number"),
    "parts that do not fit": (_parts_that_do_not_fit, "which do not fit each other"),
    "half a layer": (_half_a_layer, "lacks lora_A or lora_B"),
    "a foreign tensor": (
        _foreign_tensor,
        "brings base_model.model.model.embed_tokens.weight with 280 rows",
    ),
    "an embedding": (_embedding, "lora_embedding_A, which is no part of a LoRA.*merge it yourself"),
    "a name with odd characters": (_name_with_odd_characters, "which is no part of a LoRA"),
    "integers": (_integers, "stored as I32"),
    "numbers that are not finite": (_not_finite, "not finite"),
    "no weights": (_no_weights, "holds no weights"),
    "a regular expression": (_regular_expression, "regular expression.*names of layers only"),
    "a config of 60 MB": (_config_of_60_mb, "sensible size"),
    "DoRA without magnitudes": (_dora_without_magnitudes, "does not fit use_dora"),
    "a pickled adapter": (_pickled, "no adapter_model.safetensors.*safetensors"),
    "an adapter beside a whole model": (_beside_a_whole_model, "an adapter and a whole model"),
    "an adapter without its config": (_without_config, "no adapter_config.json"),
    "another tokenizer": (_other_tokenizer, "tokenizer is not the base model's"),
    "another type": (with_config(peft_type="IA3"), "of type 'IA3'.*merge it yourself"),
    "modules to save": (with_config(modules_to_save=["lm_head"]), "uses modules_to_save.*merge it yourself"),
    "biases": (with_config(bias="all"), "uses bias.*merge it yourself"),
    "replicated layers": (with_config(layer_replication=[[0, 1]]), "uses layer_replication"),
    "a key of the future": (with_config(use_magic=True), "uses use_magic"),
    "another start": (with_config(init_lora_weights="pissa"), "pissa.*changes the base model's weights"),
}


@pytest.mark.parametrize("flaw", BAD)
def test_a_bad_adapter_is_refused_with_a_way_to_mend_it(
    adapter: Path, submit: Callable[[], CheckedCopy], flaw: str
) -> None:
    spoil, says = BAD[flaw]
    spoil(adapter)
    with pytest.raises(InvalidSubmissionError, match=says) as refused:
        submit()
    assert "\n" not in str(refused.value)


def test_a_good_adapter_is_recorded_in_words(adapter: Path, submit: Callable[[], CheckedCopy]) -> None:
    assert submit().adapter == "LoRA adapter of rank 2 on 2 layers"


def test_without_merging_an_adapter_is_refused_with_the_recipe(
    adapter: Path, workspace: Path, base_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSubmissionError, match=r"LoRA adapter.*merge_and_unload"):
        copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", Requirements(base_model))


# Real adapters, merged by a process of its own.


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return checkout(tmp_path_factory.mktemp("checkout"))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "DoRA": {"use_dora": True},
    "with patterns": {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"^model.layers.0.mlp.down_proj": 7}},
}


def real_adapter(base: Path, folder: Path, merged: Path, **options: Any) -> None:
    """Makes an adapter with PEFT, and a folder with the model that PEFT makes of it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    options = {"target_modules": ["q_proj", "v_proj", "down_proj"]} | options
    tuned = get_peft_model(model, LoraConfig(r=2, lora_alpha=16, **options))
    generator = torch.Generator().manual_seed(3)
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name or "magnitude" in name:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    tuned.save_pretrained(folder)
    tuned.merge_and_unload().save_pretrained(merged)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("DoRA", marks=pytest.mark.heavy),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "DoRA"),
    ],
)
def test_the_merged_model_is_what_peft_makes_of_the_adapter(
    workspace: Path, base_model: Path, tmp_path: Path, settings: Settings, kind: str
) -> None:
    real_adapter(base_model, workspace / "output" / "v1", tmp_path / "merged", **KINDS[kind])
    merge = partial(merge_adapter, settings)
    kept = copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", Requirements(base_model, merge=merge))
    assert kept.digest == weights_digest(tmp_path / "merged") == weights_digest(tmp_path / "kept")
    assert kept.digest != weights_digest(base_model)
    assert "on 3 layers" in kept.adapter
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names == {path.name for path in base_model.iterdir()}


@pytest.mark.heavy
def test_embeddings_that_peft_saves_unchanged_are_left_out(
    workspace: Path, base_model: Path, tmp_path: Path, settings: Settings
) -> None:
    from transformers import AutoModelForCausalLM

    untied = shutil.copytree(base_model, tmp_path / "untied")
    model = AutoModelForCausalLM.from_pretrained(base_model, dtype="auto", tie_word_embeddings=False)
    model.lm_head.weight.data = model.get_input_embeddings().weight.data.clone()
    model.save_pretrained(untied)
    adapter = workspace / "output" / "v1"
    real_adapter(untied, adapter, tmp_path / "merged", target_modules=["q_proj", "lm_head"])
    assert "base_model.model.lm_head.base_layer.weight" in read_weights(adapter)
    merge = partial(merge_adapter, settings)
    kept = copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", Requirements(untied, merge=merge))
    assert kept.digest == weights_digest(tmp_path / "merged")
    assert "on 2 layers" in kept.adapter


@pytest.mark.slow
def test_an_adapter_of_another_model_is_refused(
    workspace: Path, base_model: Path, tmp_path: Path, settings: Settings
) -> None:
    build_base_model(tmp_path / "other")
    weights = {name.replace("layers.0", "layers.7"): weight for name, weight in tensors().items()}
    write_adapter(workspace / "output" / "v1", weights)
    required = Requirements(base_model, merge=partial(merge_adapter, settings))
    with pytest.raises(InvalidSubmissionError, match=r"has no layer model\.layers\.7.*merge it yourself"):
        copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", required)


def test_a_file_that_the_library_cannot_read_is_refused(base_model: Path, tmp_path: Path) -> None:
    """The format has texts as metadata, which have no meaning to the grader."""
    folder = write_adapter(tmp_path / "adapter")
    (folder / "adapter_config.json").rename(folder / "submitted.adapter_config.json")
    weights = folder / "adapter_model.safetensors"
    raw = weights.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    for metadata in ({"format": 1}, ["pt"], "pt", [], "", 0):
        write_raw_safetensors(weights, {"__metadata__": metadata, **header}, raw[8 + length :])
        with pytest.raises(InvalidSubmissionError, match="not a valid safetensors file"):
            check_adapter(folder, base_model)


def test_patterns_take_time_by_their_number_not_by_layers() -> None:
    """Each layer looks its few possible patterns up, so the patterns are walked through once."""
    looked_up: list[str] = []

    class Counting(dict[str, tuple[int, Any]]):
        def __contains__(self, name: object) -> bool:
            looked_up.append(str(name))
            return super().__contains__(name)

        def __iter__(self) -> Any:
            raise AssertionError("all patterns are walked through for a layer")

    many = Counting(
        {f"x{number}": (number, 3) for number in range(1000)} | {"q_proj": (1000, 7), "a.q_proj": (1001, 9)}
    )
    assert _number("model.a.q_proj", "r", many, {"r": 2}) == 7  # the first that matches
    assert _number("model.v_proj", "r", many, {"r": 2}) == 2
    assert len(looked_up) <= 8
