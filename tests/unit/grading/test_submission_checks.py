"""Tests what the grader keeps of a valid submission: the agent's weights, and of the base model everything else."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.core.errors import InvalidSubmissionError, UsageError
from a2rl.grading.submission_checks import Requirements, copy_submission
from a2rl.grading.submitted_files import Source, SubmittedFiles
from a2rl.models.checkpoint import check_base_model, tensors_in, tensors_of, weights_digest
from tests.as_nobody import as_nobody, folder_of_nobody
from tests.small_model import Weight, edit_json, random_weights, read_weights, trained_copy, write_safetensors
from tests.submission_tools import INDEX, NORM, index_of, rewrite, shard


@pytest.mark.parametrize(
    ("model_path", "says"),
    [
        ("", "is empty"),
        ("output/absent", "no folder output/absent.*save the checkpoint first"),
        ("../outside", "outside the workspace.*OUTPUT_DIR"),
        ("output/../../outside", "outside the workspace"),
        ("/etc", "outside the workspace"),
        (".", "outside the workspace"),
        ("out\0put", "is empty"),
        ("x" * 300, "not a folder|no folder"),
        ("a/" * 3000, "no folder|not a folder"),
        ("\ud800", "not a folder"),
        ("output/\udcff\n\x1b[2J", "no folder"),
        ("output/../../workspace/../outside", "outside the workspace"),
    ],
)
def test_a_path_that_is_no_folder_of_the_workspace_is_refused(
    workspace: Path, base_model: Path, submit: Callable[[str], Path], model_path: str, says: str
) -> None:
    trained_copy(base_model, workspace.parent / "outside", seed=1)
    with pytest.raises(InvalidSubmissionError, match=says):
        submit(model_path)


def test_a_link_in_the_middle_does_not_reach_the_base_model(
    workspace: Path, base_model: Path, submit: Callable[[str], Path]
) -> None:
    (workspace / "output" / "elsewhere").symlink_to(base_model.parent)
    with pytest.raises(InvalidSubmissionError, match="'elsewhere' is a link"):
        submit(f"output/elsewhere/{base_model.name}")


def test_weights_that_are_a_hole_are_refused(workspace: Path, submission: Path) -> None:
    """Their clone would be a hole, too, and make the run unreadable."""
    os.truncate(submission / "model.safetensors", 2 << 30)
    with (
        SubmittedFiles(Source(workspace, "output/v1")) as files,
        pytest.raises(InvalidSubmissionError, match=r"model\.safetensors is a sparse file"),
    ):
        files.check_sizes(4 << 30)


def test_a_submission_may_be_named_by_its_absolute_path(submission: Path, submit: Callable[[str], Path]) -> None:
    assert weights_digest(submit(str(submission))) == weights_digest(submission)


def test_the_copy_joins_submitted_weights_and_base_model_files(
    submission: Path, base_model: Path, submit: Callable[[str], Path]
) -> None:
    edit_json(submission / "config.json", use_cache=False, transformers_version="9", mine="x")
    edit_json(submission / "tokenizer_config.json", chat_template="The answer is 42.", mine="x")
    edit_json(submission / "generation_config.json", eos_token_id=77)
    (submission / "chat_template.jinja").write_text("The answer is 42.")
    (submission / "modeling_mine.py").write_text("raise SystemExit")
    (submission / "special_tokens_map.json").write_text("{}")
    (submission / "optimizer.pt").write_bytes(b"pickle")
    copy = submit("output/v1")
    assert weights_digest(copy) == weights_digest(submission) != weights_digest(base_model)
    assert sorted(path.name for path in copy.iterdir()) == sorted(path.name for path in base_model.iterdir())
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (copy / name).read_bytes() == (base_model / name).read_bytes()


def test_of_the_base_model_only_what_is_needed_is_copied(
    workspace: Path, base_model: Path, submission: Path, tmp_path: Path
) -> None:
    base, needed = tmp_path / "base", {path.name for path in base_model.iterdir()}
    shutil.copytree(base_model, base)
    for name in ("pytorch_model.bin", "model.gguf", "README.md"):
        (base / name).write_text("much")
    copy_submission(Source(workspace, "output/v1"), tmp_path / "copy", Requirements(base))
    assert {path.name for path in (tmp_path / "copy").iterdir()} == needed


def test_a_submission_without_a_tokenizer_gets_the_base_models(
    submission: Path, base_model: Path, submit: Callable[[str], Path]
) -> None:
    (submission / "tokenizer.json").unlink()
    assert (submit("output/v1") / "tokenizer.json").read_bytes() == (base_model / "tokenizer.json").read_bytes()


def test_files_and_tensors_beside_the_index_are_ignored(
    submission: Path, base_model: Path, submit: Callable[[str], Path]
) -> None:
    digest = weights_digest(submission)
    shard(submission, 2)
    for name in ("consolidated.safetensors", "model-00003-of-00003.safetensors"):
        write_safetensors(submission / name, {"stale": Weight("F32", (1,), bytes(4))})
    path = submission / "model-00001-of-00002.safetensors"
    here = {name: read_weights(submission)[name] for name in tensors_in(path)}
    write_safetensors(path, here | {"not.in.the.index": Weight("F32", (1,), bytes(4))})
    copy = submit("output/v1")
    assert weights_digest(copy) == digest
    assert sorted(path.name for path in copy.glob("*.safetensors")) == sorted(set(index_of(copy).values()))
    assert "not.in.the.index" not in tensors_in(copy / path.name)


def test_an_index_whose_shards_were_replaced_is_ignored(submission: Path, submit: Callable[[str], Path]) -> None:
    """save_pretrained leaves it when it saves a model whole where it was in shards; transformers ignores it, too."""
    whole, digest = (submission / "model.safetensors").read_bytes(), weights_digest(submission)
    shard(submission, 2)
    for path in submission.glob("model-*"):
        path.unlink()
    (submission / "model.safetensors").write_bytes(whole)
    copy = submit("output/v1")
    assert weights_digest(copy) == digest
    assert not (copy / INDEX).exists()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_fsdp_wrapped_module.", "policy."])
def test_a_prefix_of_all_names_is_removed_without_a_copy(
    submission: Path, submit: Callable[[str], Path], prefix: str
) -> None:
    digest = weights_digest(submission)
    weights = read_weights(submission)
    write_safetensors(submission / "model.safetensors", {prefix + name: each for name, each in weights.items()})
    size = (submission / "model.safetensors").stat().st_size
    copy = submit("output/v1")
    assert weights_digest(copy) == digest
    assert (copy / "model.safetensors").stat().st_size == size


def test_a_model_saved_without_its_head_gets_its_names_back(submission: Path, submit: Callable[[str], Path]) -> None:
    digest = weights_digest(submission)
    weights = {name.removeprefix("model."): each for name, each in read_weights(submission).items()}
    write_safetensors(submission / "model.safetensors", weights)
    assert weights_digest(submit("output/v1")) == digest


def test_buffers_that_older_versions_saved_are_dropped(submission: Path, submit: Callable[[str], Path]) -> None:
    digest = weights_digest(submission)
    rewrite(submission, **{"model.layers.0.self_attn.rotary_emb.inv_freq": Weight("F32", (4,), bytes(16))})
    assert weights_digest(submit("output/v1")) == digest


def test_weights_that_are_all_equal_are_the_agents_choice(submission: Path, submit: Callable[[str], Path]) -> None:
    """They may also be all zero."""
    zero = {name: each._replace(data=bytes(len(each.data))) for name, each in read_weights(submission).items()}
    write_safetensors(submission / "model.safetensors", zero)
    submit("output/v1")


def test_only_custom_code_that_the_base_model_has_may_be_named(
    submission: Path, base_model: Path, workspace: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(base_model, tmp_path / "with-code")
    code = {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    edit_json(base / "config.json", auto_map=code)
    edit_json(submission / "config.json", auto_map=code)
    copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", Requirements(base))
    edit_json(submission / "config.json", auto_map={"AutoModelForCausalLM": "mine.Model"})
    with pytest.raises(InvalidSubmissionError, match="auto_map"):
        copy_submission(Source(workspace, "output/v1"), tmp_path / "kept-2", Requirements(base))


def test_a_tied_base_model_with_a_head_takes_both_kinds(
    submission: Path, base_model: Path, workspace: Path, tmp_path: Path
) -> None:
    """These are submissions with a head and without one."""
    base = shutil.copytree(base_model, tmp_path / "with-head")
    rewrite(base, **{"lm_head.weight": read_weights(base)["model.embed_tokens.weight"]})
    without = copy_submission(Source(workspace, "output/v1"), tmp_path / "kept-1", Requirements(base)).digest
    rewrite(submission, **{"lm_head.weight": read_weights(submission)["model.embed_tokens.weight"]})
    assert copy_submission(Source(workspace, "output/v1"), tmp_path / "kept-2", Requirements(base)).digest == without


def test_a_base_model_with_an_index_and_a_whole_file_is_refused(base_model: Path, tmp_path: Path) -> None:
    base = shutil.copytree(base_model, tmp_path / "both")
    shutil.copy(base / "model.safetensors", tmp_path / "old")
    shard(base, 2)
    check_base_model(base)
    shutil.copy(tmp_path / "old", base / "model.safetensors")
    with pytest.raises(UsageError, match=r"back ends differ.*remove one"):
        check_base_model(base)


def test_sharded_weights_are_found_through_an_index_of_our_own(submission: Path, submit: Callable[[str], Path]) -> None:
    shard(submission, 3)
    copy = submit("output/v1")
    index = json.loads((copy / "model.safetensors.index.json").read_text())["weight_map"]
    assert index == {name: tensor.file.name for name, tensor in tensors_of(copy).items()}
    assert len(set(index.values())) == 3


def test_the_digest_does_not_depend_on_shards_order_or_metadata(submission: Path) -> None:
    digest = weights_digest(submission)
    weights = read_weights(submission)
    write_safetensors(submission / "model.safetensors", weights, {"format": "pt", "saved": "today"})
    assert weights_digest(submission) == digest
    write_safetensors(submission / "model.safetensors", dict(reversed(weights.items())))
    assert weights_digest(submission) == digest
    shard(submission, 2)
    assert weights_digest(submission) == digest


@pytest.mark.parametrize("change", ["bytes", "name", "shape", "dtype"])
def test_the_digest_depends_on_bytes_names_shapes_and_types(submission: Path, change: str) -> None:
    digest, weights = weights_digest(submission), read_weights(submission)
    norm = weights.pop(NORM)
    name = "other" if change == "name" else NORM
    weights[name] = {
        "bytes": norm._replace(data=norm.data[:-1] + b"\x01"),
        "name": norm,
        "shape": norm._replace(shape=(4, 4)),
        "dtype": norm._replace(dtype="I32"),
    }[change]
    write_safetensors(submission / "model.safetensors", weights)
    assert weights_digest(submission) != digest


def test_weights_may_be_saved_as_bfloat16(submission: Path, submit: Callable[[str], Path]) -> None:
    def upper_half(data: bytes) -> bytes:
        return b"".join(data[at + 2 : at + 4] for at in range(0, len(data), 4))  # of a float32: a bfloat16

    weights = read_weights(submission).items()
    half = {name: Weight("BF16", weight.shape, upper_half(weight.data)) for name, weight in weights}
    write_safetensors(submission / "model.safetensors", half)
    assert {tensor.dtype for tensor in tensors_of(submit("output/v1")).values()} == {"BF16"}


def test_a_tied_head_that_was_saved_as_well_is_dropped(submission: Path, submit: Callable[[str], Path]) -> None:
    digest = weights_digest(submission)
    rewrite(submission, **{"lm_head.weight": read_weights(submission)["model.embed_tokens.weight"]})
    copy = submit("output/v1")
    assert "lm_head.weight" not in tensors_in(copy / "model.safetensors")
    assert weights_digest(copy) == digest


def test_changes_to_the_folder_after_the_copy_have_no_effect(
    submission: Path, base_model: Path, submit: Callable[[str], Path]
) -> None:
    copy = submit("output/v1")
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    write_safetensors(submission / "model.safetensors", random_weights(280, seed=99))
    with (submission / "model.safetensors").open("r+b") as file:
        file.write(b"\xff" * 1000)
    shutil.rmtree(submission)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert not any(path.is_symlink() for path in copy.iterdir())
    assert all(path.stat().st_nlink == 1 for path in copy.glob("*.safetensors"))


def test_a_hub_tokenizer_that_was_saved_again_is_the_same(
    submission: Path, base_model: Path, workspace: Path, tmp_path: Path
) -> None:
    # Older files write a merge as "a b", newer ones as ["a", "b"]. Qwen's files on the hub are of the older kind.
    hub = shutil.copytree(base_model, tmp_path / "hub")
    tokenizer = json.loads((hub / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    del tokenizer["model"]["ignore_merges"]
    (hub / "tokenizer.json").write_text(json.dumps(tokenizer))
    copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", Requirements(hub))
    assert (tmp_path / "kept" / "tokenizer.json").read_bytes() == (hub / "tokenizer.json").read_bytes()


def test_a_hub_config_that_was_saved_again_is_the_same(
    submission: Path, base_model: Path, workspace: Path, tmp_path: Path
) -> None:
    # Qwen2.5's config.json has an unused sliding_window of 32768; transformers saves it as null.
    hub = shutil.copytree(base_model, tmp_path / "hub")
    edit_json(hub / "config.json", sliding_window=32768, use_sliding_window=False)
    edit_json(submission / "config.json", sliding_window=None, use_sliding_window=False)
    copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", Requirements(hub))


def test_the_base_model_itself_passes_its_own_check(base_model: Path) -> None:
    check_base_model(base_model)


@pytest.mark.parametrize(
    ("missing", "says"),
    [("config.json", "config.json"), ("tokenizer_config.json", "tokenizer"), ("model.safetensors", "safetensors")],
)
def test_a_folder_that_is_no_base_model_is_a_usage_error(
    base_model: Path, tmp_path: Path, missing: str, says: str
) -> None:
    folder = shutil.copytree(base_model, tmp_path / "model")
    (folder / missing).unlink()
    with pytest.raises(UsageError, match=f"{says}.*save"):
        check_base_model(folder)
    with pytest.raises(UsageError, match="no model folder"):
        check_base_model(tmp_path / "absent")


@pytest.mark.parametrize("name", ["output", "output/v1", "output/v1/model.safetensors", "output/v1/config.json"])
def test_withdrawn_permissions_are_a_refusal_as_an_ordinary_user(name: str, base_model: Path) -> None:
    def work() -> None:
        (root / name).chmod(0)
        with pytest.raises(InvalidSubmissionError, match="permissions"):
            copy_submission(Source(root, "output/v1"), root.parent / "kept", Requirements(root.parent / "base"))
        (root / name).chmod(0o700)

    with folder_of_nobody() as parent:
        root = parent / "workspace"
        trained_copy(base_model, root / "output/v1", seed=1)
        shutil.copytree(base_model, parent / "base")
        for path in parent.rglob("*"):
            shutil.chown(path, *owner_of(parent))
        as_nobody(work)


def owner_of(folder: Path) -> tuple[int, int]:
    return folder.stat().st_uid, folder.stat().st_gid
