"""Tests the base model of the mini variants, built very small."""

from pathlib import Path

import pytest

from a2rl.models.checkpoint import check_base_model, weights_digest
from a2rl.models.tiny import TinyReport, build_tiny
from a2rl.models.tiny_params import TinyParams

SMALL = TinyParams(
    hidden_size=32, intermediate_size=64, layers=1, heads=2, kv_heads=1, vocab_size=320, steps=12, batch_tokens=200
)
DOCUMENTS = [f"{a} plus {b} makes {a + b}." for a in range(12) for b in range(12)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TinyReport]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return folder, build_tiny(DOCUMENTS, folder, SMALL)


def test_the_same_documents_and_params_give_the_same_weights(built: tuple[Path, TinyReport], tmp_path: Path) -> None:
    build_tiny(DOCUMENTS, tmp_path / "again", SMALL)
    assert weights_digest(tmp_path / "again") == weights_digest(built[0])


def test_another_seed_gives_other_weights(built: tuple[Path, TinyReport], tmp_path: Path) -> None:
    build_tiny(DOCUMENTS, tmp_path / "other", SMALL.model_copy(update={"seed": 1}))
    assert weights_digest(tmp_path / "other") != weights_digest(built[0])


def test_it_is_a_base_model_that_the_pipeline_accepts(built: tuple[Path, TinyReport]) -> None:
    check_base_model(built[0])


def test_the_loss_falls_and_is_written_step_by_step(built: tuple[Path, TinyReport]) -> None:
    rows = (built[0].parent / "model.loss.csv").read_text(encoding="utf-8").splitlines()
    losses = [float(row.split(",")[1]) for row in rows[1:]]
    assert len(losses) == SMALL.steps
    assert losses[-1] < losses[0]


def test_numbers_are_read_by_digits_and_texts_survive_tokenizing(built: tuple[Path, TinyReport]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(built[0])
    assert len(tokenizer.tokenize("1234")) == 4
    text = "Ana has 12 eggs.\n#### 12"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_long_documents_are_cut_and_none_is_lost() -> None:
    from a2rl.models.tiny_training import _batches

    documents = [[number] * (1 + number % 30) for number in range(500)]
    params = SMALL.model_copy(update={"steps": 10_000, "batch_tokens": 100})
    seen = set()
    for batch in _batches(documents, params.model_copy(update={"steps": 200})):
        assert len(batch) * max(len(document) for document in batch) <= 100
        seen |= {document[0] for document in batch}
    assert seen == set(range(500))


def test_it_can_look_things_up_before_it_has_read_anything(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    unread = TinyParams(steps=1, learning_rate=1e-9, matrix_learning_rate=1e-9)
    build_tiny([f"word {chr(97 + number % 26) * number}" for number in range(1, 40)], tmp_path / "model", unread)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    once = torch.randint(300, model.config.vocab_size, (32, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        guesses = model(torch.cat([once, once], dim=1)).logits[:, 8:-1].argmax(-1)
    assert (guesses == once[:, 1:]).float().mean() > 0.25
