"""Tries judges before a run: what is wrong is said in one line."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import A2rlError, InfrastructureError, InterruptedByUserError, UsageError
from a2rl.core.settings import Settings
from a2rl.grading.run_judge import check_judge_of
from a2rl.judge.params import JudgeConfig, JudgeParams
from a2rl.judge.trial import check_judge
from a2rl.run.directory import RunDir
from a2rl.run.spec import RunSpec
from stages.setup import setup
from tasks.alpacaeval.grade import trial_question
from tests.fake_judge import FakeJudge, fake_judge
from tests.mock_llm_process import driver_process
from tests.run_maker import know_judge, spec
from tests.unit.run.test_spec import FIRST

OWN = "weighted_alpaca_eval_gpt4_turbo"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeJudge]:
    with fake_judge(tmp_path_factory.mktemp("judge")) as running:
        yield running


def check(params: JudgeParams, settings: Settings, key: str | None = "secret-key-1") -> None:
    check_judge(JudgeConfig(params, settings.judgements, key), trial_question(params.annotator))


@pytest.mark.parametrize(
    ("mood", "kind", "says"),
    [
        ("forbidden", UsageError, "refuses the key in MY_KEY: the judge answered 401: no such key; set a valid one"),
        ("missing", UsageError, "has no model missing: the judge answered 404"),
        ("exhausted", UsageError, "has no quota left"),
        ("odd", UsageError, "refuses the request: the judge answered 400: Unsupported parameter:\\x1b[2J"),
        ("no-logprobs", UsageError, "gives no log probabilities"),
        ("chatty", UsageError, "does not answer in the form that weighted_alpaca_eval_gpt4_turbo asks for"),
        ("busy", InfrastructureError, "the judge answered 429"),
        ("broken", InfrastructureError, "the judge answered 500"),
        ("garbled", InfrastructureError, "not JSON"),
        ("nested", InfrastructureError, "not JSON"),
        ("huge", InfrastructureError, "too large"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    judge: FakeJudge, settings: Settings, mood: str, kind: type[A2rlError], says: str
) -> None:
    with pytest.raises(kind) as error:
        check(judge.params(mood, api_key_env="MY_KEY", attempts=2), settings)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert "secret-key-1" not in str(error.value)


def test_a_judge_that_is_slow_or_not_there_does_not_answer(judge: FakeJudge, settings: Settings) -> None:
    for changes in ({"timeout_s": 0.02}, {"base_url": "http://127.0.0.1:9"}, {"base_url": "http://["}):
        with pytest.raises(InfrastructureError, match="does not answer"):
            check(judge.params("slow", attempts=1, **changes), settings)


def test_the_trial_is_neither_cached_nor_taken_from_the_cache(judge: FakeJudge, settings: Settings) -> None:
    check(judge.params(), settings)
    assert not settings.judgements.exists()


def spec_of(judge: JudgeParams, task: str) -> RunSpec:
    values: dict[str, Any] = FIRST | {"task": task, "variant": "full", "judge": judge.model_dump()}
    return RunSpec.model_validate(values)


def test_a_run_without_a_key_is_refused_before_anything_is_asked(judge: FakeJudge, settings: Settings) -> None:
    before, params = len(judge.asked()), judge.params(api_key_env="NO_SUCH_KEY")
    with pytest.raises(UsageError, match=r"params\.yaml does not have"):
        check_judge_of(spec_of(params, "alpacaeval"), settings)
    know_judge(settings, params)
    with pytest.raises(UsageError, match="set NO_SUCH_KEY"):
        check_judge_of(spec_of(params, "alpacaeval"), settings)
    assert len(judge.asked()) == before
    check_judge_of(RunSpec.model_validate(FIRST), settings)  # has no judge


def test_the_scripted_llm_as_a_judge_is_refused_for_what_it_does(settings: Settings, tmp_path: Path) -> None:
    with driver_process("gsm8k", tmp_path / "served.jsonl") as url:
        params = JudgeParams(base_url=f"{url}/v1", api_key_env=None, model="claude-opus-4-6", attempts=1)
        know_judge(settings, params)
        with pytest.raises(UsageError, match="gives no log probabilities"):
            check_judge_of(spec_of(params.model_copy(update={"annotator": OWN}).resolved(OWN), "alpacaeval"), settings)
        with pytest.raises(UsageError, match=re.escape("does not answer in the form that correct_or_incorrect")):
            check_judge_of(spec_of(params.resolved("correct_or_incorrect"), "deepsearchqa"), settings)
        wrong = replace(JudgeConfig(params, settings.judgements), params=params.model_copy(update={"base_url": url}))
        with pytest.raises(UsageError, match="404"):
            check_judge(wrong, trial_question(OWN))


def test_a_setup_loads_no_model_to_try_a_judge(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that this machine serves was tried before the start."""
    tried: list[str] = []

    def stop(*_: object) -> None:
        raise InterruptedByUserError

    monkeypatch.setattr("stages.setup.check_judge_of", lambda spec, _: tried.append(spec.run_id))
    monkeypatch.setattr("stages.setup._inputs_of", stop)
    for name, judge in {"served": JudgeParams(serve="smollm2-135m"), "asked": JudgeParams(model="m")}.items():
        with pytest.raises(InterruptedByUserError):
            setup(RunDir.create(settings.runs, spec(run_id=name, judge=judge)), settings)
    assert tried == ["asked"]
