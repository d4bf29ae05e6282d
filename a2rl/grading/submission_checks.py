"""Checks a submission against the base model, and copies it out of the agent's reach. This is where most are refused.

What cannot be graded is refused: the submission gets no score, which is not a score of zero, and the agent is told why
and what to do (`InvalidSubmissionError`). The reasons, in the order in which a submission meets them:

- it comes too late, or a quota is used up (receiving.py);
- the folder or its files are missing, unreadable, links, too large, or of another format (submitted_files.py, which
  asks other_formats.py for the command that makes a checkpoint of them);
- it is an adapter that cannot be merged (adapters.py);
- its architecture, settings, tensors or tokenizer are not those of the base model, or a number is not finite (here,
  with a2rl/models/arithmetic.py, tensor_names.py and finite.py).

The copy is checked and graded, so later changes in the agent's folder do not matter. Only the weights come from the
agent. The configuration, tokenizer and chat template of the copy are those of the base model, so that a submission
cannot bring its own code, template or vocabulary. Nothing except JSON is deserialised here.
"""

import errno
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from a2rl.core.errors import InfrastructureError, InvalidSubmissionError, UnclearFaultError
from a2rl.core.files import MACHINE_ERRORS
from a2rl.core.processes import OF_MACHINE, read_apart
from a2rl.core.settings import Settings
from a2rl.grading.adapters import read_adapter
from a2rl.grading.other_formats import ADAPTER_CONFIG
from a2rl.grading.submitted_files import ADAPTER_RECIPE, CHECKED, Source, SubmittedFiles
from a2rl.linux.placing import place_file
from a2rl.models.arithmetic import first_difference
from a2rl.models.caps import CHECK_S, MAX_CONFIG_BYTES, MAX_JSON_BYTES, TOKENIZER_SIZES, Caps, read_json
from a2rl.models.checkpoint import (
    BYTES,
    INDEX,
    SMALL_FILES,
    digest_of_tensors,
    largest_size,
    tensor_digest,
    tensors_of,
)
from a2rl.models.finite import require_finite
from a2rl.models.stored_weights import keep_only
from a2rl.models.tensor_names import Weights, find_embedding, find_head, find_weights

SHOWN_CHARS = 200
PATIENCE = 10
"""How many times as long as its processor time a check may take, because other processes use the machine as well."""
ATTEMPTS = 2
"""How many times a check is tried that the machine ends."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


class CheckedCopy(NamedTuple):
    """What the grader has kept of a submission."""

    digest: str
    """The digest of its weights."""
    adapter: str = ""
    """The adapter that was merged, in words; empty if the weights were submitted whole."""


Check = Callable[[Path, "Requirements"], None]
"""Checks a folder; see `check_files`."""
Merge = Callable[[Path, Path, Path], str]
"""Merges an adapter (the first folder) of the base model (the second) into the third folder; see `merge_adapter`."""


def check_files(folder: Path, required: "Requirements") -> None:
    """Checks all but the numbers of a submission, as `SubmittedFiles` copies it.

    Raises:
        InvalidSubmissionError: It cannot be graded; the message says why and how to fix it.
    """
    if (folder / f"submitted.{ADAPTER_CONFIG}").exists():
        _check_tokenizer(folder / "submitted.tokenizer.json", required.base_model / "tokenizer.json")
        read_adapter(folder, tensors_of(required.base_model))
    else:
        _check(folder, required)


def check_apart(settings: Settings, folder: Path, required: "Requirements") -> None:
    """Does `check_files` in a process that ends after a while, whatever the files hold. Raises the same errors.

    What has passed is read again in this process.

    Raises:
        InfrastructureError: The machine has ended the check each time.
    """
    for _ in range(ATTEMPTS):
        read = read_apart(
            __name__, [str(folder), str(required.base_model)], settings, json.dumps(dict(required.complete_config)),
            PATIENCE * CHECK_S, cpu_s=CHECK_S,
        )  # fmt: skip
        if not read.is_machines:
            break
    else:
        kind = InfrastructureError if read.is_certain else UnclearFaultError
        raise kind(f"this machine could not check the submission ({read.problem}); submit again later")
    if read.problem:
        raise InvalidSubmissionError(
            f"the checkpoint cannot be read ({read.problem[:SHOWN_CHARS]}); save it again with save_pretrained"
        )
    if read.output:
        raise InvalidSubmissionError(read.output.decode())


class Requirements(NamedTuple):
    """What the submissions of a run must be like, and how that is found out."""

    base_model: Path
    """The folder of the base model, from which they must descend."""
    complete_config: Mapping[str, Any] = NOTHING
    """Its configuration with all defaults; empty if it is not known."""
    merge: Merge | None = None
    """Merges a LoRA adapter; None: adapters are refused."""
    check: Check = check_files
    """Checks all but the numbers: `check_files`, or `check_apart` with its settings."""


def copy_submission(
    source: Source,
    target: Path,
    required: Requirements,
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> CheckedCopy:
    """Copies the weights of a submission into `target` and adds the base model's other files.

    The sizes of the files are limited before the first byte is copied; what is in them is checked with the copy, which
    the agent cannot change. Files are opened once and copied from there, so that links, devices and replacements have
    no effect. It always ends: a copy that is too slow is given up (a2rl/linux/untrusted_folder.py), and a check has
    caps and a limit on its time (a2rl/models/caps.py).

    Args:
        required: What it must be like.
        alone: Entered while this takes disk space on which others must not count: for the copy, and for the merge.

    Raises:
        InvalidSubmissionError: It cannot be graded; the message says why and how to fix it.
        InfrastructureError: This machine cannot copy or merge it, for example because the disk is full.
    """
    base_model, merge = required.base_model, required.merge
    try:
        base = tensors_of(base_model)
        target.mkdir(parents=True)
        with SubmittedFiles(source) as files:
            tokenizer = base_model / "tokenizer.json"
            size = tokenizer.stat().st_size if tokenizer.exists() else MAX_JSON_BYTES
            files.check_sizes(largest_size(base), TOKENIZER_SIZES * size + (1 << 20))
            if files.are_adapter and merge is None:
                raise InvalidSubmissionError(ADAPTER_RECIPE)
            copy = target / "adapter" if files.are_adapter else target
            with alone():
                copy.mkdir(exist_ok=True)
                files.copy(copy)
        required.check(copy, required)  # others do not wait for this
        if merge is None or not files.are_adapter:
            return complete_copy(target, required)
        with alone():
            about = merge(copy, base_model, target)
        shutil.rmtree(copy)
        name_as_submitted(target)
        return complete_copy(target, required)._replace(adapter=about)
    except OSError as error:
        raise InfrastructureError(
            f"the grader could not copy the submission: {error.strerror or error}; submit again later"
        ) from error


def name_as_submitted(saved: Path) -> None:
    """Renames the files of a saved model that are only read, as those of a copied submission are named."""
    for name in CHECKED:
        if (saved / name).exists():
            (saved / name).rename(saved / f"submitted.{name}")


def complete_copy(copy: Path, required: Requirements) -> CheckedCopy:
    """Checks the copy of a submission against the base model and gives it the base model's other files.

    Args:
        copy: The copy, with `submitted.config.json`.
        required: What it must be like.

    Raises:
        InvalidSubmissionError: It cannot be graded; the message says why and how to fix it.
    """
    weights, config = _check(copy, required)
    digests = {name: tensor_digest(name, tensor, require_finite) for name, tensor in weights.tensors.items()}
    _drop_tied_head(weights, digests)
    keep_only(copy, weights.tensors)
    _take_from_base(copy, required.base_model, config)
    return CheckedCopy(digest_of_tensors(weights.tensors, digests))


def _check(copy: Path, required: Requirements) -> tuple[Weights, dict[str, Any]]:
    """Checks all but the numbers of a submission; returns its weights and the base model's configuration."""
    base_model, complete = required.base_model, required.complete_config
    base, config = tensors_of(base_model), read_json(base_model / "config.json", "config.json", MAX_CONFIG_BYTES)
    _check_config(read_json(copy / "submitted.config.json", "config.json", MAX_CONFIG_BYTES), config, complete)
    _check_tokenizer(copy / "submitted.tokenizer.json", base_model / "tokenizer.json")
    if (copy / f"submitted.{INDEX}").exists():
        (copy / f"submitted.{INDEX}").rename(copy / INDEX)
    return find_weights(tensors_of(copy, Caps.of(len(base))), base, is_tied(config, complete)), config


def restore_checkpoint(checkpoint: Path, base_model: Path, target: Path) -> Path:
    """Makes a folder with the weights of a kept checkpoint, and all else from the base model, as when it was accepted.

    Returns:
        The folder, which is `target`. Its weights are links.

    Raises:
        InvalidSubmissionError: The weights cannot be read.
        OSError: It cannot be written.
    """
    target.mkdir()
    for path in {tensor.file for tensor in tensors_of(checkpoint).values()} | {checkpoint / INDEX}:
        if path.exists():
            (target / path.name).symlink_to(path.resolve())
    _take_from_base(target, base_model, read_json(base_model / "config.json", "config.json", MAX_CONFIG_BYTES))
    return target


def is_tied(config: Mapping[str, Any], complete: Mapping[str, Any]) -> bool | None:
    """Returns whether a model's head is tied to its embedding; None if its configuration does not say so."""
    for each in (complete, config):
        for part in (each.get("text_config"), each):
            if isinstance(part, dict) and isinstance(tied := part.get("tie_word_embeddings"), bool):
                return tied
    return None


def _drop_tied_head(weights: Weights, digests: dict[str, str]) -> None:
    """Drops a stored head that is the same as the embedding to which it is tied."""
    head, embedding = weights.head, weights.embedding
    if head is None or embedding is None:
        return
    if digests.pop(head) != digests[embedding] or weights.tensors[head].dtype != weights.tensors[embedding].dtype:
        raise InvalidSubmissionError(
            f"{head} differs from {embedding}, but the base model ties the two, and back ends differ in which they "
            "use; train with tie_word_embeddings as in the base model, and save with save_pretrained"
        )
    del weights.tensors[head]


def check_tied_head(base_model: Path, tied: bool | None) -> None:
    """Refuses a base model that stores a head other than the embedding to which its configuration ties it.

    Raises:
        InvalidSubmissionError: It does.
    """
    tensors = tensors_of(base_model)
    head, embedding = find_head(tensors), find_embedding(tensors)
    if not tied or head is None or embedding is None:
        return
    if tensor_digest(head, tensors[head]) != tensor_digest(embedding, tensors[embedding]):
        raise InvalidSubmissionError(
            f"it stores {head} with other weights than {embedding}, although its config.json ties the two "
            "(tie_word_embeddings), and back ends differ in which they use; set the key to false, or remove the head"
        )


def _check_config(submitted: Mapping[str, Any], base: Mapping[str, Any], complete: Mapping[str, Any]) -> None:
    if (found := first_difference(submitted, base, complete)) is not None:
        remedy = "submit the base model's architecture with its settings"
        if found.key == "vocab_size":
            remedy = (
                f"cut off new rows: model.resize_token_embeddings({_shown(found.base)}); model.save_pretrained(path)"
            )
        raise InvalidSubmissionError(
            f"config.json has {found.key[:SHOWN_CHARS]} = {_shown(found.submitted)}, the base model has "
            f"{_shown(found.base)}; it is graded as the base model computes, so {remedy}"
        )
    if submitted.get("auto_map") not in (None, base.get("auto_map")):
        raise InvalidSubmissionError(
            "config.json asks for custom code (auto_map) that the base model does not have, and the grader never runs "
            "any; submit the base architecture"
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def _check_tokenizer(submitted: Path, base: Path) -> None:
    if not (submitted.exists() and base.exists()):
        return  # the grader uses the base model's tokenizer in any case
    theirs, ours = read_json(submitted, "tokenizer.json"), read_json(base, "tokenizer.json")
    if _vocabulary(theirs) != _vocabulary(ours):
        raise InvalidSubmissionError(
            "the tokenizer is not the base model's, which the grader uses; train with the base model's tokenizer"
        )
    if (added := _added(theirs)) != (known := _added(ours)):
        if known <= added:
            new = json.loads(min(added - known)).get("content")
            raise InvalidSubmissionError(
                "the tokenizer is not the base model's, which the grader uses: it has new tokens, such as "
                f"{str(new)[:50]!r}. If the model was not trained to write them (a padding token only fills batches), "
                "delete tokenizer.json from the folder and submit it again; else train with the base model's tokenizer"
            )
        raise InvalidSubmissionError(
            "the tokenizer is not the base model's, which the grader uses: its special tokens differ; train with the "
            "base model's tokenizer"
        )


def _added(tokenizer: Mapping[str, Any]) -> set[str]:
    """Returns the tokens that were added to the vocabulary, as JSON."""
    added = tokenizer.get("added_tokens")
    tokens = added if isinstance(added, list) else []
    return {json.dumps(token, sort_keys=True) for token in tokens if isinstance(token, dict)}


def _vocabulary(tokenizer: Mapping[str, Any]) -> list[Any]:
    """Returns the parts of tokenizer.json that define the vocabulary and its ids, in a form that can be compared."""
    model = tokenizer.get("model")
    if not isinstance(model, dict):
        model = {}
    merges = model.get("merges")
    pairs: list[Any] = []
    if isinstance(merges, list):
        # A merge is written as "a b" or ["a", "b"], depending on the version of the library.
        pairs = [each.split(" ") if isinstance(each, str) else each for each in merges]
    return [model.get("vocab"), pairs]


def _take_from_base(copy: Path, base_model: Path, config: Mapping[str, Any]) -> None:
    for path in copy.iterdir():
        if path.suffix != ".safetensors" and path.name != INDEX:
            path.unlink()
    for path in (each for pattern in SMALL_FILES for each in base_model.glob(pattern)):
        if path.is_file() and path.name != INDEX:
            place_file(path, copy / path.name)
    stored = {tensor.dtype for tensor in tensors_of(copy).values()}
    if "quantization_config" in config and stored <= BYTES.keys():
        # Its weights were trained unquantised. With this key, they would be read as quantised ones.
        plain = {key: value for key, value in config.items() if key != "quantization_config"}
        (copy / "config.json").unlink()  # it may be another name of the base model's file
        (copy / "config.json").write_text(json.dumps(plain, indent=2), encoding="utf-8")


if __name__ == "__main__":
    try:
        check_files(Path(sys.argv[1]), Requirements(Path(sys.argv[2]), json.load(sys.stdin)))
    except InvalidSubmissionError as refusal:
        sys.stdout.buffer.write(str(refusal).encode("utf-8", "backslashreplace"))
    except OSError as error:
        if error.errno not in MACHINE_ERRORS - {errno.ENOMEM} and not str(error.filename).startswith(sys.argv[2]):
            raise
        sys.stderr.write(f"{error}\n")
        sys.exit(OF_MACHINE)
