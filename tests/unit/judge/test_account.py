"""Tests the limit on what a run pays for its judge, and the judge's noise, with a judge that is really asked."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import InfrastructureError
from a2rl.judge.account import Account, SpendLimitError
from a2rl.judge.client import Answer, Judge, Question
from a2rl.judge.params import JudgeConfig
from tests.fake_judge import FakeJudge, fake_judge

PRICE = (100 * 10 + 1 * 30) / 1e6
"""Of one of the fake judge's answers, in dollars."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeJudge]:
    with fake_judge(tmp_path_factory.mktemp("judge")) as running:
        yield running


def share(reply: Mapping[str, Any]) -> float:
    return float(reply["choices"][0]["message"]["content"] == "m")


def questions(count: int) -> list[Question]:
    return [Question([{"role": "user", "content": f"pair {number}"}], share) for number in range(count)]


def ask(judge: FakeJudge, folder: Path, count: int, mood: str = "kind", limit: float | None = None) -> list[Answer]:
    params = judge.params(mood, concurrency=3, attempts=2)
    account = folder / "account.db"
    with Judge(JudgeConfig(params, folder / "answers.db", account=account, limit_usd=limit)) as client:
        return client.ask(questions(count), 10**6)


def test_every_paid_request_counts_and_a_cached_answer_does_not(judge: FakeJudge, tmp_path: Path) -> None:
    for _ in range(2):
        ask(judge, tmp_path, 7)
    use = Account(tmp_path / "account.db").use()
    assert (use.requests, use.prompt_tokens, use.completion_tokens) == (7, 700, 7)
    assert use.dollars == pytest.approx(7 * PRICE)


@pytest.mark.parametrize("mood", ["no-usage", "nan-usage", "negative-usage", "endless-usage"])
def test_an_answer_without_a_price_is_counted_by_its_length(judge: FakeJudge, tmp_path: Path, mood: str) -> None:
    """The same holds for one that cannot be read."""
    ask(judge, tmp_path, 1, mood)
    use = Account(tmp_path / "account.db").use()
    assert use.requests == 1
    assert 0 < use.dollars < 0.1


@pytest.mark.parametrize(("mood", "timeout_s"), [("slow", 0.02), ("garbled", 10.0), ("list", 10.0)])
def test_a_request_without_a_whole_reply_costs_its_highest_price(
    judge: FakeJudge, tmp_path: Path, mood: str, timeout_s: float
) -> None:
    params = judge.params(mood, timeout_s=timeout_s, attempts=3, decoding={"max_tokens": 7})
    with Judge(JudgeConfig(params, tmp_path / "answers.db", account=tmp_path / "account.db")) as client:
        [answer] = client.ask(questions(1), 10**6)
    assert answer.verdict is None
    use = Account(tmp_path / "account.db").use()
    assert (use.requests, use.completion_tokens) == (3, 3 * 7)
    assert use.prompt_tokens > 3 * len("pair 0")
    assert use.dollars == pytest.approx(params.price(use.prompt_tokens, use.completion_tokens))


def test_a_judge_that_cannot_be_reached_costs_nothing(judge: FakeJudge, tmp_path: Path) -> None:
    params = judge.params(base_url="http://127.0.0.1:9", attempts=2)
    with Judge(JudgeConfig(params, tmp_path / "answers.db", account=tmp_path / "account.db")) as client:
        client.ask(questions(1), 10**6)
    assert Account(tmp_path / "account.db").use().requests == 0


@pytest.mark.heavy
def test_at_the_limit_only_what_is_under_way_is_finished(judge: FakeJudge, tmp_path: Path) -> None:
    before, limit = len(judge.asked()), 10 * PRICE
    with pytest.raises(SpendLimitError, match="--max-judge-usd"):
        ask(judge, tmp_path, 60, "slow", limit)
    different = set(judge.asked()[before:])  # on a busy machine a slow answer may be asked for again
    assert 10 <= len(different) <= 10 + 3 - 1
    assert Account(tmp_path / "account.db").use().dollars <= (10 + 3 - 1) * PRICE * 1.0001
    asked = len(judge.asked())
    with pytest.raises(SpendLimitError):  # as after a restart of the service
        ask(judge, tmp_path, 60, "slow", limit)
    assert len(judge.asked()) == asked
    assert len(ask(judge, tmp_path, 60, "slow", 2 * 60 * PRICE)) == 60


def test_answers_in_the_cache_need_no_money(judge: FakeJudge, tmp_path: Path) -> None:
    first = ask(judge, tmp_path, 5, limit=100.0)
    assert ask(judge, tmp_path, 5, limit=PRICE) == first


def test_a_quota_holds_for_many_askers_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "account.db"
    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(lambda _: Account(path).take("agent's search", 10), range(40)))
    assert sum(taken) == 10
    assert not Account(path).take("agent's search", 10)
    assert Account(path).take("agent's judgement", 1)


def test_other_users_cannot_read_the_account(tmp_path: Path) -> None:
    """A damaged one is an error of one line."""
    path = tmp_path / "account.db"
    Account(path).add("judgement", "x")
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("no database, but many words " * 99)
    for use in (
        Account(path, 1.0).require_money,
        Account(path).use,
        lambda: Account(tmp_path / "no" / "f").take("judgement", 1),
    ):
        with pytest.raises(InfrastructureError, match="cannot be used") as error:
            use()
        assert "\n" not in str(error.value)


def test_the_dearest_job_is_found_by_the_end_of_its_name(tmp_path: Path) -> None:
    account = Account(tmp_path / "account.db")
    assert account.dearest_usd("-public") == 0
    for job, dollars in (("a-public", 1.0), ("a-public", 1.5), ("b-public", 2.0), ("a-private", 9.0)):
        account.add("judgement", job, dollars=dollars)
    assert account.dearest_usd("-public") == 2.5
