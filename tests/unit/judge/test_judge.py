"""Tests the client of a judge's endpoint: its requests, its retries, its cache, and how it reads the answers."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import UsageError
from a2rl.core.processes import child_environment
from a2rl.core.retries import retry_after_s
from a2rl.core.settings import Settings
from a2rl.judge.cache import AnswerCache
from a2rl.judge.client import Answer, Judge, Question
from a2rl.judge.params import JudgeConfig, JudgeParams
from a2rl.judge.parsers import UnreadableReplyError
from a2rl.llm.keys import grader_keys
from tests.fake_judge import FakeJudge, fake_judge

PAIRS = 405
ROOT = Path(__file__).resolve().parents[3]
PATHS = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def shared_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeJudge]:
    with fake_judge(tmp_path_factory.mktemp("judge")) as judge:
        yield judge


def first_share(reply: Mapping[str, Any]) -> float:
    """Reads the probability of the first token, as a task would."""
    try:
        return math.exp(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["logprob"])
    except (LookupError, TypeError) as error:
        raise UnreadableReplyError("no log probabilities") from error


def questions(count: int, topic: str) -> list[Question]:
    return [Question([{"role": "user", "content": f"{topic} {number}"}], first_share) for number in range(count)]


def ask(params: JudgeParams, cache: Path, count: int, topic: str, failures_allowed: int = 10**6) -> list[Answer]:
    with Judge(JudgeConfig(params, cache / "judgements.db")) as judge:
        return judge.ask(questions(count, topic), failures_allowed)


def test_answers_come_in_order_with_tokens_and_price(shared_judge: FakeJudge, tmp_path: Path) -> None:
    answers = ask(shared_judge.params(), tmp_path, 3, "price")
    assert [answer.verdict for answer in answers] == pytest.approx([0.75] * 3, abs=1e-3)
    assert {(answer.prompt_tokens, answer.completion_tokens) for answer in answers} == {(100, 1)}
    assert sum(answer.dollars for answer in answers) == pytest.approx(3 * (100 * 10 + 1 * 30) / 1e6)


@pytest.mark.parametrize("mood", ["busy-once", "broken-once", "garbled-once", "routed-once"])
def test_a_request_is_made_again_where_that_may_help(shared_judge: FakeJudge, tmp_path: Path, mood: str) -> None:
    before = len(shared_judge.asked())
    assert ask(shared_judge.params(mood), tmp_path, 1, "again")[0].verdict is not None
    assert len(shared_judge.asked()) - before == 2


def test_retry_after_is_honoured(shared_judge: FakeJudge, tmp_path: Path) -> None:
    started = time.monotonic()
    assert ask(shared_judge.params("busy-once", backoff_s=0.0), tmp_path, 1, "wait")[0].verdict is not None
    assert time.monotonic() - started >= 1


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("7", 7, 7),
        ("", 0, 0),
        ("soon", 0, 0),
        ("-5", 0, 0),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", 0, 0),
        ("nan", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", -1e10, 0),
        ("Wed, 21 Oct 2165 07:28:00 GMT", 1e9, 1e11),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, low: float, high: float) -> None:
    assert low <= retry_after_s(header) <= high


@pytest.mark.parametrize(
    ("mood", "requests", "reason"),
    [
        ("broken", 3, "the judge answered 500: out of order"),
        ("garbled", 3, "not JSON"),
        ("list", 3, "no object"),
        ("routed", 3, "the judge answered 502"),
        ("forbidden", 1, "the judge answered 401: no such key"),
        ("no-logprobs", 1, "no log probabilities"),
    ],
)
def test_a_request_that_fails_for_good_has_no_verdict(
    shared_judge: FakeJudge, tmp_path: Path, mood: str, requests: int, reason: str
) -> None:
    """It has a reason."""
    before = len(shared_judge.asked())
    [answer] = ask(shared_judge.params(mood, attempts=3), tmp_path, 1, "fails")
    assert answer.verdict is None
    assert reason in answer.reason
    assert len(shared_judge.asked()) - before == requests


def test_a_failure_is_not_kept_and_is_asked_about_again(shared_judge: FakeJudge, tmp_path: Path) -> None:
    before = len(shared_judge.asked())
    for _ in range(2):
        ask(shared_judge.params("no-logprobs"), tmp_path, 1, "not kept")
    assert len(shared_judge.asked()) - before == 2


def test_a_slow_judge_fails_by_timeout_and_nothing_hangs(shared_judge: FakeJudge, tmp_path: Path) -> None:
    [answer] = ask(shared_judge.params("slow", timeout_s=0.02, attempts=1), tmp_path, 1, "timeout")
    assert answer.verdict is None
    assert "Timeout" in answer.reason


def test_no_more_requests_are_under_way_than_allowed(tmp_path: Path) -> None:
    with fake_judge(tmp_path) as judge:
        ask(judge.params("slow", concurrency=3), tmp_path, 12, "crowd")
        assert judge.most_at_once() == 3


def test_a_judged_pair_is_never_asked_about_twice(shared_judge: FakeJudge, tmp_path: Path) -> None:
    first = ask(shared_judge.params(), tmp_path, 5, "twice")
    before = len(shared_judge.asked())
    elsewhere: dict[str, Any] = {"concurrency": 2, "timeout_s": 5.0, "attempts": 2}
    assert ask(shared_judge.params(**elsewhere), tmp_path, 5, "twice") == first
    assert len(shared_judge.asked()) == before


@pytest.mark.parametrize(
    "change", [{"decoding": {"max_tokens": 1, "temperature": 0}}, {"annotator": "another"}, {"model": "newer"}]
)
def test_another_judge_is_asked_anew(shared_judge: FakeJudge, tmp_path: Path, change: dict[str, Any]) -> None:
    ask(shared_judge.params(), tmp_path, 2, "anew")
    before = len(shared_judge.asked())
    ask(JudgeParams(**{**shared_judge.params().model_dump(), **change}), tmp_path, 2, "anew")
    assert len(shared_judge.asked()) - before == 2


def test_after_too_many_failures_nothing_more_is_asked(shared_judge: FakeJudge, tmp_path: Path) -> None:
    before = len(shared_judge.asked())
    answers = ask(shared_judge.params("broken", attempts=1, concurrency=1), tmp_path, 50, "stop", failures_allowed=4)
    assert len(shared_judge.asked()) - before == 5
    assert all(answer.verdict is None for answer in answers)
    assert "not asked" in answers[-1].reason
    assert "500" in answers[-1].reason


def test_judges_of_one_name_at_two_addresses_are_two(shared_judge: FakeJudge, tmp_path: Path) -> None:
    with fake_judge(tmp_path) as other:
        ask(shared_judge.params(), tmp_path, 2, "places")
        ask(other.params(), tmp_path, 2, "places")
        assert len(other.asked()) == 2


@pytest.mark.heavy
def test_a_killed_judge_is_not_asked_again_about_its_answers(tmp_path: Path) -> None:
    """Except for the requests in progress at the kill, whose answers may be lost."""
    cache, answered = tmp_path / "cache", 0
    with fake_judge(tmp_path) as judge:
        port = int(judge.base_url.rpartition(":")[2])
        client = client_process(judge, cache)
        wait_until(lambda: len(judge.asked()) > 100)
        judge.process.kill()
        client.wait(60)
        answered = kept(cache)
    assert 0 < answered < PAIRS
    with fake_judge(tmp_path, port) as judge:
        before = set(judge.asked())
        answers = ask(judge.params(), cache, PAIRS, "pair")
        again = judge.asked()[len(before) :]
    assert len(again) == PAIRS - answered
    assert sum(answer.verdict is not None for answer in answers) == len(answers) == PAIRS


@pytest.mark.heavy
def test_a_client_that_is_killed_half_way_pays_for_nothing_twice(tmp_path: Path) -> None:
    cache, concurrency = tmp_path / "cache", 64
    with fake_judge(tmp_path) as judge:
        client = client_process(judge, cache)
        wait_until(lambda: len(judge.asked()) > 100)
        client.send_signal(signal.SIGKILL)
        client.wait()
        answered = kept(cache)
        before = len(judge.asked())
        answers = ask(judge.params(concurrency=concurrency), cache, PAIRS, "pair")
        late = len(judge.asked()) - before - (PAIRS - answered)  # requests of the killed client read after the count
        assert 0 <= late <= concurrency
        assert len(judge.asked()) <= PAIRS + concurrency  # only the requests in progress at the kill are lost
    assert sum(answer.verdict is not None for answer in answers) == PAIRS


def test_several_threads_that_ask_the_same_ask_once(tmp_path: Path) -> None:
    same = questions(1, "same") * 8
    with fake_judge(tmp_path) as judge, Judge(JudgeConfig(judge.params("slow"), tmp_path / "judgements.db")) as client:
        answers = client.ask(same, 10**6)
        assert len(judge.asked()) == 1
    assert [answer.verdict for answer in answers] == pytest.approx([0.75] * 8)


@pytest.mark.heavy
def test_processes_that_ask_the_same_at_once_pay_for_it_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with fake_judge(tmp_path) as judge:
        clients = [client_process(judge, cache) for _ in range(2)]
        assert [client.wait(120) for client in clients] == [0, 0]
        assert len(judge.asked()) == len(set(judge.asked())) == PAIRS


class StoppedError(Exception):
    """The wait is over."""


def stop(seconds: float) -> None:
    raise StoppedError


def test_only_a_living_claimant_is_waited_for(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from a2rl.judge.cache import AnswerCache\n"
        "with AnswerCache(Path(sys.argv[1])) as cache, cache.claimed('k', time.sleep) as reply:\n"
        "    print(reply, flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "answers.db")]
    with (
        AnswerCache(tmp_path / "answers.db") as cache,
        subprocess.Popen(command, cwd=ROOT, env=PATHS, stdout=subprocess.PIPE) as living,
    ):
        assert living.stdout is not None
        assert living.stdout.readline() == b"None\n"
        with pytest.raises(StoppedError), cache.claimed("k", stop):
            pass
        living.kill()
        with cache.claimed("k", time.sleep) as reply:
            assert reply is None
            cache.store("k", {"answer": 1})
        with cache.claimed("k", stop) as reply:
            assert reply == {"answer": 1}


def test_who_waits_for_a_claim_gets_its_answer(tmp_path: Path) -> None:
    paid, answers = list[int](), list[object]()

    def ask_once() -> None:
        with AnswerCache(tmp_path / "answers.db") as cache:
            with cache.claimed("k", time.sleep) as reply:
                if reply is None:
                    paid.append(1)
                    time.sleep(0.2)
                    cache.store("k", {"answer": 1})
            answers.append(cache.find("k"))

    threads = [threading.Thread(target=ask_once) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(paid), answers) == (1, [{"answer": 1}] * 8)
    assert list((tmp_path / "answers.db-claims").iterdir()) == []


def test_a_failure_frees_the_question_for_the_next(tmp_path: Path) -> None:
    with AnswerCache(tmp_path / "answers.db") as first, AnswerCache(tmp_path / "answers.db") as second:
        with pytest.raises(RuntimeError), first.claimed("k", stop):
            raise RuntimeError
        with second.claimed("k", stop) as reply:
            assert reply is None


def test_an_answer_that_cannot_be_read_back_is_asked_for_again(tmp_path: Path) -> None:
    with AnswerCache(tmp_path / "answers.db") as cache:
        cache._database.execute("INSERT INTO answers VALUES ('k', '{')")
        assert cache.find("k") is None


@pytest.mark.parametrize(
    "verdict",
    [float("nan"), float("inf"), 1e308, -0.2, 1.2, True, "0.5", None, 10**400],
    ids=lambda each: str(each)[:8],
)
def test_a_verdict_that_is_no_share_is_no_verdict(shared_judge: FakeJudge, tmp_path: Path, verdict: Any) -> None:
    question = Question([{"role": "user", "content": "odd"}], lambda _: verdict)
    with Judge(JudgeConfig(shared_judge.params(), tmp_path / "judgements.db")) as judge:
        [answer] = judge.ask([question], 1)
    assert answer.verdict is None
    assert "the judge's verdict is" in answer.reason


@pytest.mark.parametrize("mood", ["endless-usage", "negative-usage", "nan-usage"])
def test_a_count_of_tokens_that_cannot_be_is_none(shared_judge: FakeJudge, tmp_path: Path, mood: str) -> None:
    [answer] = ask(shared_judge.params(mood), tmp_path, 1, mood)
    assert answer.verdict == pytest.approx(0.75, abs=1e-3)
    assert (answer.prompt_tokens, answer.completion_tokens) == (0, 0)


def test_reasoning_beside_the_completion_is_counted(shared_judge: FakeJudge, tmp_path: Path) -> None:
    [answer] = ask(shared_judge.params("reasoned"), tmp_path, 1, "reasoned")
    assert (answer.prompt_tokens, answer.completion_tokens) == (100, 31)


def test_a_reply_nested_without_end_is_no_json(shared_judge: FakeJudge, tmp_path: Path) -> None:
    [answer] = ask(shared_judge.params("nested", attempts=1), tmp_path, 1, "nested")
    assert "not JSON" in answer.reason


def client_process(judge: FakeJudge, cache: Path) -> "subprocess.Popen[bytes]":
    """Starts another process that asks about all pairs."""
    script = (
        "import sys; from pathlib import Path; from a2rl.judge.params import JudgeParams\n"
        "from tests.unit.judge.test_judge import PAIRS, ask\n"
        "ask(JudgeParams.model_validate_json(sys.argv[1]), Path(sys.argv[2]), PAIRS, 'pair', 16)\n"
    )
    params = judge.params(attempts=2).model_dump_json()
    return subprocess.Popen([sys.executable, "-c", script, params, str(cache)], cwd=ROOT, env=PATHS)


def kept(cache: Path) -> int:
    import sqlite3

    database = sqlite3.connect(cache / "judgements.db")
    count = int(database.execute("SELECT count(*) FROM answers").fetchone()[0])
    database.close()
    return count


def wait_until(holds: Any, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_the_key_comes_from_the_named_variable(settings: Settings) -> None:
    params = JudgeParams(api_key_env="MY_KEY")
    with pytest.raises(UsageError, match="MY_KEY"):
        JudgeConfig.by(params, settings)
    with_key = Settings(settings.root, {**settings.environ, "MY_KEY": "secret"})
    assert JudgeConfig.by(params, with_key).api_key == "secret"


def test_only_the_graders_processes_get_the_key(settings: Settings) -> None:
    with_key = Settings(settings.root, {**settings.environ, "OPENAI_API_KEY": "secret"})
    assert grader_keys(with_key)["OPENAI_API_KEY"] == "secret"
    assert "secret" not in child_environment(with_key).values()
