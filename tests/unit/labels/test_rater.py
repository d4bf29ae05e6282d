"""Tests the second rater with an endpoint on this machine, and Cohen's kappa on a published example."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2rl.judge.account import Account, SpendLimitError
from a2rl.judge.params import JudgeParams
from a2rl.judge.parsers import UnreadableReplyError
from a2rl.labels.rater import cohens_kappa, rate, routes_in
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
    with pytest.raises(SpendLimitError):
        rate(run, judge, settings, limit_usd=1.5)


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
