"""Tests the log-probabilities of gold answers with real models that are trained here, in seconds."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from a2rl.contamination import gold_answers
from a2rl.contamination.check import log_probability_gap, twins_gap
from a2rl.contamination.gold_answers import Asked, GoldJob, GoldResult, asked_items, measure
from a2rl.contamination.twins import Twins, gap_between, shared_items
from a2rl.core.errors import UnclearFaultError
from a2rl.core.files import read_jsonl, read_model, write_jsonl, write_model
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeJob, GradeResult, ids_of_job, ids_of_run
from a2rl.grading.pool import GraderPool, is_of_machine
from a2rl.grading.service import GradingService
from a2rl.run.directory import RunDir
from a2rl.run.inputs import hidden_of
from a2rl.run.ranking import best_submission
from a2rl.run.records import GradeRecord, SetupRecord
from a2rl.task_api.data import hidden_digest
from a2rl.validity.checks import RunEvidence, run_checks
from a2rl.validity.record import Finding
from stages.grade import grade
from tasks.gsm8k.prepare import draw
from tests.run_maker import (
    FakePool,
    Finished,
    end_agent,
    finished_run,
    grade_private,
    grade_result,
    item_results,
    make_run,
    spec,
    submit_checkpoint,
)
from tests.small_model import CHAT_TEMPLATE, build_base_model, edit_json

ITEMS, STEPS, BATCH = 80, 100, 10
Train = Callable[[Path, Sequence[Asked], Path], Path]


@pytest.fixture(autouse=True)
def the_same_twins_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another draw of twins would give other figures, and by chance one of 500 flags."""
    monkeypatch.setattr("a2rl.contamination.twins.secrets", SimpleNamespace(token_hex=lambda size: "5e" * size))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model with 180,000 random weights, which has room for the answers to forty problems."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = build_base_model(tmp_path_factory.mktemp("models") / "base")
    edit_json(folder / "config.json", hidden_size=64, intermediate_size=128, head_dim=16, num_hidden_layers=1)
    edit_json(folder / "tokenizer_config.json", chat_template=None)
    import torch

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


def train(base: Path, rows: Sequence[Asked], target: Path) -> Path:
    """Fine-tunes on the rows for a fixed number of steps."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    optimizer, order = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0), random.Random(0)
    for _ in range(STEPS):
        batch = [cast(str, row.prompt) + " " + row.answer for row in order.sample([*rows], BATCH)]
        tokens = tokenizer(batch, padding=True, return_tensors="pt")
        labels = tokens["input_ids"].masked_fill(tokens["attention_mask"] == 0, -100)
        loss = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((base / name).read_bytes())
    return target


def run_on_a_draw(settings: Settings, base: Path) -> RunDir:
    """Makes a run of gsm8k whose eval set is a draw by the task's generator."""
    run = make_run(settings, base, items=ITEMS)
    hidden = hidden_of(run)
    draw("a secret", hidden)
    write_jsonl(hidden / "eval.jsonl", read_jsonl(hidden / "eval.jsonl")[:ITEMS])
    setup = run.need("setup", SetupRecord)
    run.write("setup", setup.model_copy(update={"data_digest": hidden_digest(hidden.parent)}))
    return run


def judged(run: RunDir, settings: Settings, trained: Path) -> list[Finding]:
    """Submits a checkpoint, calls its result an improvement, and returns what the check finds."""
    service = GradingService(run, cast(GraderPool, FakePool()))
    submit_checkpoint(service, str(trained.relative_to(run.workspace)))
    end_agent(run)
    grade_private(run)
    record = grade(run, settings)
    write_model(run.record_path("grade"), record.model_copy(update={"verdict": "improved"}))
    return list(log_probability_gap(RunEvidence(run, settings)))


def private_ids(run: RunDir) -> list[str]:
    return ids_of_run(run.spec, hidden_of(run), "private")


@pytest.mark.heavy
def test_what_all_prompts_begin_with_changes_no_value(settings: Settings, base: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    before = "Question: How many legs have two cats?\nAnswer: They have 2 * 4 = 8 legs.\n\n" * 3
    asked = [(f"{before}Question: How many have {cats} cats?\nAnswer:", f"They have {4 * cats}.") for cats in range(12)]
    items = [Asked(id=prompt, prompt=prompt, answer=answer) for prompt, answer in asked]
    measure((base, base), items, [], tmp_path, settings)

    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModelForCausalLM.from_pretrained(base)
    expected = []
    for prompt, answer in asked:
        tokens, begins = tokenizer(f"{prompt} {answer}")["input_ids"], len(tokenizer(prompt)["input_ids"])
        with torch.inference_mode():
            log_probs = torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)
        values = [float(log_probs[place - 1, tokens[place]]) for place in range(begins, len(tokens))]
        expected.append(sum(values) / len(answer))
    found = read_model(tmp_path / f"{base.name}-gold.json", GoldResult)
    assert found.values[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.heavy
def test_a_model_that_learned_the_private_items_is_flagged(settings: Settings, base: Path) -> None:
    run = run_on_a_draw(settings, base)
    rows = asked_items(run.spec, base, hidden_of(run), private_ids(run), settings.root)
    [found] = judged(run, settings, train(base, rows, run.workspace / "output" / "v1"))
    assert (found.kind, found.level) == ("log-probability-gap", "flag")
    assert _figure(found, "gap in nats a character") > 0.05
    assert _figure(found, "p") < 0.002


@pytest.mark.heavy
def test_a_model_that_was_trained_on_other_draws_is_not_flagged(settings: Settings, base: Path, tmp_path: Path) -> None:
    run = run_on_a_draw(settings, base)
    draw("data of the agent", tmp_path)
    ids = [str(place) for place in range(400)]
    rows = asked_items(run.spec, base, tmp_path, ids, settings.root)
    [found] = judged(run, settings, train(base, rows, run.workspace / "output" / "v1"))
    assert (found.kind, found.level) == ("log-probabilities-agree", "note")
    assert _figure(found, "gap in nats a character") < 0.05
    assert _figure(found, "p") > 0.05


def _figure(found: Finding, what: str) -> float:
    [value] = [each.value for each in found.evidence if each.what == what]
    return cast(float, value)


@pytest.mark.heavy
def test_the_log_probability_is_that_of_the_answers_tokens(settings: Settings, base: Path, tmp_path: Path) -> None:
    """It does not depend on the other items."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    items = [
        Asked(id=str(n), prompt=f"Question: {'very ' * n}long?\nAnswer:", answer="42 and 17" * (1 + n))
        for n in range(5)
    ]
    other = train(base, items * 4, tmp_path / "other")
    gains = measure((other, base), items, [], tmp_path, settings)
    tokenizer, expected = AutoTokenizer.from_pretrained(base), []
    for folder in (other, base):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for item in items:
            asked, answer = (tokenizer(text)["input_ids"] for text in (item.prompt, f" {item.answer}"))
            with torch.inference_mode():
                logits = model(torch.tensor([asked + answer])).logits[0, len(asked) - 1 : -1]
            chosen = torch.log_softmax(logits, -1)[range(len(answer)), answer].sum()
            expected.append(float(chosen) / len(item.answer))
    assert list(gains.seen.values()) == pytest.approx(
        [a - b for a, b in zip(expected[:5], expected[5:], strict=True)], abs=1e-4
    )


@pytest.mark.heavy
def test_a_model_with_a_chat_template_is_asked_in_a_chat(settings: Settings, base: Path, tmp_path: Path) -> None:
    import shutil

    chatty = shutil.copytree(base, tmp_path / "chatty")
    edit_json(chatty / "tokenizer_config.json", chat_template=CHAT_TEMPLATE)
    draw("any", tmp_path)
    items = asked_items(spec(), chatty, tmp_path, ["0", "1"], settings.root)
    assert [each[0][0] for each in cast(Any, [item.prompt for item in items])] == ["user", "user"]
    needs = "{% if not tone %}{{ raise_exception('no tone') }}{% endif %}"
    edit_json(chatty / "tokenizer_config.json", chat_template=CHAT_TEMPLATE + needs)
    gains = measure((chatty, chatty), items, [], tmp_path, settings, {"tone": "calm"})
    assert set(gains.seen.values()) == {0.0}


def test_a_task_without_fresh_items_is_not_checked_and_says_so(tmp_path: Path) -> None:
    finished = finished_run(tmp_path / "checkout", variant="full")
    improve(finished)
    [found] = log_probability_gap(RunEvidence(finished.run, finished.settings))
    assert (found.kind, found.level) == ("not-checked", "note")
    assert "the task can make none" in found.text


def improve(finished: Finished) -> None:
    """Calls its result an improvement."""
    record = finished.run.need("grade", GradeRecord)
    write_model(finished.run.record_path("grade"), record.model_copy(update={"verdict": "improved"}))


def paired_twins(folder: Path, count: int) -> Twins:
    """Makes twins of every second of so many items, and writes both to the folder."""
    for name, rows in (("seen", count), ("fresh", count // 2)):
        (folder / name).mkdir()
        write_jsonl(folder / name / "eval.jsonl", [{"question": f"{n} + 1?", "answer": str(n)} for n in range(rows)])
        write_jsonl(folder / name / "shots.jsonl", [])
    return Twins(folder / "fresh", "seed", {str(n): str(2 * n) for n in range(count // 2)})


def compared(finished: Finished, twins: Twins, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Makes both checks with these twins; returns the ids of each grade of twins and of each list of gold answers."""
    asked: list[list[str]] = []

    def graded(job: GradeJob, *_: object) -> GradeResult:
        asked.append(ids_of_job(job))
        return grade_result(item_results(asked[-1], 1), 0.1)

    def no_items(*given: Any) -> list[Asked]:
        asked.append([*given[3]])
        return []

    improve(finished)
    monkeypatch.setattr("a2rl.contamination.check.make_twins", lambda *_: twins)
    monkeypatch.setattr("a2rl.contamination.check.asked_items", no_items)
    monkeypatch.setattr("a2rl.contamination.twins.grade_on_all_gpus", graded)
    found = [each for look in (twins_gap, log_probability_gap) for each in look(RunEvidence(*finished))]
    assert len(found) == 2
    return asked


def test_of_published_items_only_the_graded_have_a_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the score on one half of the items, or of a sample of them."""
    finished = finished_run(tmp_path / "checkout", variant="full", items=120)
    twins = paired_twins(tmp_path, 120)
    graded, seen, fresh = compared(finished, twins, monkeypatch)
    assert twins.of is not None
    private = private_ids(finished.run)
    assert seen == [each for each in private if int(each) % 2 == 0]
    assert [twins.of[each] for each in graded] == seen
    assert fresh == graded


def test_nothing_is_graded_for_too_few_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = finished_run(tmp_path / "checkout", variant="full", items=60)
    assert compared(finished, paired_twins(tmp_path, 60), monkeypatch) == []


class FakeReader:
    """Reads gold answers in place of the process. It fails at the first models of each try, as it was told."""

    def __init__(self, *read: int) -> None:
        self._read, self.times = [*read], list[float]()

    def __call__(self, _: str, arguments: list[str], log: Path, timeout_s: float, *__: object) -> str:
        self.times.append(timeout_s)
        job, result = read_model(Path(arguments[0]), GoldJob), Path(arguments[1])
        if count := self._read.pop(0):
            write_model(result, GoldResult(values=((-1.0,) * len(job.items), (-0.5,) * len(job.items))[:count]))
        return "" if count == len(job.models) else "it was killed"


ASKED = [Asked(id=str(n), prompt="1 + 1?", answer="2") for n in range(60)]


@pytest.mark.parametrize("read", [(2,), (1, 2)])
def test_a_model_that_is_not_read_at_once_is_read_again(
    settings: Settings, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: tuple[int, ...]
) -> None:
    monkeypatch.setattr(gold_answers, "run_model_process", reader := FakeReader(*read))
    gains = measure((tmp_path / "v1", base), ASKED, [], tmp_path, settings, grade_s=1000.0)
    assert set(gains.seen.values()) == {0.5}
    assert len(reader.times) == len(read)
    assert reader.times[0] > 2000


def test_a_model_that_cannot_be_read_is_not_passed_over(
    settings: Settings, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent may have made it so."""
    monkeypatch.setattr(gold_answers, "run_model_process", FakeReader(1, 1))
    with pytest.raises(UnclearFaultError, match="killed") as failed:
        measure((tmp_path / "v1", base), ASKED, [], tmp_path, settings)
    assert not is_of_machine(failed.value)


def test_a_base_model_that_cannot_be_read_is_no_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = finished_run(tmp_path / "checkout", variant="full", items=120)
    monkeypatch.setattr(gold_answers, "run_model_process", FakeReader(0))
    monkeypatch.setattr("a2rl.contamination.check.make_twins", lambda *_: paired_twins(tmp_path, 120))
    monkeypatch.setattr("a2rl.contamination.check.asked_items", lambda *_: ASKED)
    improve(finished)
    (finished.run.root / "twins").mkdir()
    [found] = run_checks(RunEvidence(*finished), [log_probability_gap])
    assert (found.kind, found.level) == ("not-checked", "note")
    assert "the base model could not be read here (it was killed)" in found.text


def test_episodes_have_no_single_gold_answers(settings: Settings, base: Path, tmp_path: Path) -> None:
    assert asked_items(spec(task="webshop"), base, tmp_path, [], settings.root) == []


def test_a_result_that_is_no_improvement_is_not_looked_at(tmp_path: Path) -> None:
    finished = finished_run(tmp_path / "checkout")
    best = best_submission(finished.run.ledger)
    assert best is not None
    assert list(log_probability_gap(RunEvidence(finished.run, finished.settings))) == []
    assert not (finished.run.root / "twins").exists()


def test_items_that_two_draws_share_are_on_neither_side(tmp_path: Path) -> None:
    for name in ("seen", "fresh"):
        (tmp_path / name).mkdir()
        draw(name, tmp_path / name)
    rows = read_jsonl(tmp_path / "seen" / "eval.jsonl")
    fresh = read_jsonl(tmp_path / "fresh" / "eval.jsonl")
    write_jsonl(tmp_path / "fresh" / "eval.jsonl", [rows[7], *fresh[:20]])
    shared = shared_items("gsm8k", tmp_path / "seen", Twins(tmp_path / "fresh", "seed", None))
    assert "7" in shared.seen
    assert "0" in shared.fresh
    assert len(shared.fresh) < 10


def test_published_items_are_compared_with_their_own_twins() -> None:
    seen = {str(n): 1.0 + n / 100 for n in range(60)}
    fresh = {str(n): 0.9 + n / 50 for n in range(30)}  # the twin n is that of item 2n
    gap = gap_between(seen, fresh, {str(n): str(2 * n) for n in range(30)})
    assert gap is not None
    assert gap.difference == pytest.approx(0.1)
    assert gap.p < 0.001
    assert gap_between(seen, {"0": 1.0}, {"0": "0"}) is None
