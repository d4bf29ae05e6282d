"""Tests the second rater with an endpoint on this machine, and Cohen's kappa on a published example."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from a2rl.cli.commands import app
from a2rl.cli.stored_runs import _labelled
from a2rl.core.processes import Reading
from a2rl.judge.account import Account, SpendLimitError
from a2rl.judge.params import JudgeParams
from a2rl.judge.parsers import UnreadableReplyError
from a2rl.labels.rater import _plain, cohens_kappa, rate, routes_in
from a2rl.labels.records import LabelsRecord, RouteLabel, SecondRating, labels_of
from a2rl.recording.code_history import snapshot_code
from tests.http_server import Quiet, serving
from tests.run_maker import checkout, make_run
from tests.small_model import build_base_model


def body(text: str) -> dict[str, Any]:
    usage = {"prompt_tokens": 1000, "completion_tokens": 10}
    return {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage}


class Endpoint(Quiet):
    """Answers every question with DPO, and keeps the questions."""

    questions: list[dict[str, Any]]

    def respond(self) -> None:
        type(self).questions.append(json.loads(self.read()))
        self.say(json.dumps(body('Here it is: {"route": ["SFT", "DPO"]}')).encode())


@pytest.fixture
def judge() -> Iterator[JudgeParams]:
    Endpoint.questions = []
    with serving(Endpoint) as url:
        yield JudgeParams(base_url=url, api_key_env=None, model="some-model", dollars_per_million_prompt_tokens=1000.0)


def test_an_llm_reads_the_code_and_what_it_costs_is_limited(tmp_path: Path, judge: JudgeParams) -> None:
    settings = checkout(tmp_path)
    run = make_run(settings, build_base_model(tmp_path / "models" / "small"))
    (run.workspace / "code" / "train.py").write_text("print('the code', '<|im_end|>')\n")
    snapshot_code(run.workspace / "code", run.code, "test")
    found = rate(run, judge, settings, limit_usd=1.5)
    assert (found.model, found.routes, found.dollars) == ("some-model", ("SFT", "DPO"), 1.0)
    assert r"print('the code', '<\|im_end|>')" in Endpoint.questions[0]["messages"][0]["content"]
    assert not run.account.exists()
    assert rate(run, judge, settings, limit_usd=1.5) == found
    assert len(Endpoint.questions) == 1  # the answer was cached
    Account(run.root / "labels-account.db").add("judgement", "labels", 1, 1, 1.0)
    with pytest.raises(SpendLimitError, match=r"has cost \$2\.0000: allow more with --max-usd"):
        rate(run, judge, settings, limit_usd=1.5)


def test_the_code_is_sent_to_the_judge_that_is_served_here(
    tmp_path: Path, judge: JudgeParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to the provider whose URL is the default."""

    @contextmanager
    def served(module: str, folder: str, **_: object) -> Iterator[str]:
        yield judge.base_url

    settings = checkout(tmp_path)
    run = make_run(settings, build_base_model(tmp_path / "models" / "small"))
    (run.workspace / "code" / "train.py").write_text("print('the code')\n")
    snapshot_code(run.workspace / "code", run.code, "test")
    monkeypatch.setattr("a2rl.judge.local._process", served)
    elsewhere = "http://127.0.0.1:1"
    local = JudgeParams(serve=str(tmp_path / "models" / "small"), model="m", api_key_env=None, base_url=elsewhere)
    assert rate(run, local, settings, limit_usd=1.0).routes == ("SFT", "DPO")


@pytest.mark.parametrize("name", ["alpaca_eval_gpt5_2_fn", "weighted_alpaca_eval_gpt4_turbo", "alpaca_eval_gpt4_fn"])
def test_a_rater_is_not_asked_for_the_form_of_a_verdict(name: str) -> None:
    """The call of a function, or one letter: no route could be read in the reply, which costs as much."""
    judge = JudgeParams(annotator=name, model="m").resolved(name)
    assert (_plain(judge).decoding or {}).keys() <= {"temperature", "reasoning_effort"}


def test_good_labels_stay_if_a_run_can_no_longer_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = checkout(tmp_path)
    run = make_run(settings, build_base_model(tmp_path / "models" / "small"))
    known = LabelsRecord(seconds=0, chain=(RouteLabel(route="SFT", confidence=1.0),), training_type="SFT")
    run.write("labels", known)
    second = SecondRating(model="m", routes=("DPO",))
    failed = Reading(b"", "it needed too much memory")
    monkeypatch.setattr("a2rl.labels.records.read_apart", lambda *_: failed)
    monkeypatch.setattr("a2rl.labels.rater.rate", lambda *_: second)
    assert _labelled(run, settings, "gpt-4.1", 1.0).reason == "it needed too much memory"
    assert labels_of(run) == known.model_copy(update={"second": second})


def test_a_failed_second_rating_replaces_no_paid_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = checkout(tmp_path)
    run = make_run(settings, build_base_model(tmp_path / "models" / "small"))
    paid = SecondRating(model="m", routes=("SFT", "DPO"), dollars=0.4)
    failed = SecondRating(model="m", routes=(), reason="the judge cannot be reached")
    other = SecondRating(model="n", routes=("GRPO",))
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    codes, kept = [], []
    for second in (failed, paid, failed, other):
        monkeypatch.setattr("a2rl.labels.rater.rate", lambda *_, answer=second: answer)
        done = CliRunner().invoke(app, ["label", run.id, "--judge", "gpt-4.1"])
        assert ("cannot be reached" in done.output) == (second is failed)
        codes.append(done.exit_code)
        kept.append(getattr(labels_of(run), "second", None))
    assert kept == [failed, paid, paid, other]
    assert codes == [1, 0, 1, 0]


@pytest.mark.parametrize(
    "text", ["", "SFT", "{}", '{"route": []}', '{"route": ["magic"]}', '{"route": {"a": 1}}', '{"route": 3}']
)
def test_an_answer_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UnreadableReplyError):
        routes_in(body(text))


def test_kappa_is_that_of_the_textbook() -> None:
    yes_no = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    assert cohens_kappa(yes_no) == pytest.approx(0.4)
    assert cohens_kappa([("SFT", "SFT"), ("DPO", "DPO")]) == 1
    assert cohens_kappa([]) is None
    assert cohens_kappa([("SFT", "SFT")]) is None
