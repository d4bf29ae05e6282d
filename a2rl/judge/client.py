"""Asks a judge many questions at once, pays for none twice, and says of each one that failed why it did.

    with Judge(judging) as judge:
        answers = judge.ask([Question(messages, read), ...], failures_allowed=16)

A failed request is made again where that may help (see a2rl/retries.py). `Retry-After` is honoured.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from a2rl.files import digest_of
from a2rl.judge.cache import AnswerCache
from a2rl.judge.params import Judging
from a2rl.number import number
from a2rl.retries import TryAgain, may_pass, persist, retry_after_s

REASON_SHOWN = 200
MOST_TOKENS = 10**9
"""In one reply; who counts more counts nonsense."""


class Unreadable(ValueError):
    """The judge answered, but not in the form that was asked for."""


Messages = Sequence[Mapping[str, str]]
Read = Callable[[Mapping[str, Any]], float]
"""The verdict in the body of a reply, a number from 0 to 1, whatever it means to the task. Raises Unreadable."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the judge is asked, and how its answer is read."""

    messages: Messages
    read: Read


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict, or None with the reason. Tokens and price are what the answer took when it was asked for."""

    verdict: float | None
    reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0


class _Failed(Exception):
    """A request that did not get an answer, and will not; its text is the reason."""


class Judge:
    """The client of one endpoint."""

    def __init__(self, judging: Judging) -> None:
        self._params = judging.params
        headers = {"Authorization": f"Bearer {judging.api_key}"} if judging.api_key else {}
        limits = httpx.Limits(max_connections=self._params.concurrency)
        self._url = f"{self._params.base_url.rstrip('/')}/chat/completions"
        self._http = httpx.Client(headers=headers, timeout=self._params.timeout_s, limits=limits)
        self._cache = AnswerCache(judging.cache)
        self._closing = threading.Event()

    @property
    def annotator(self) -> str:
        """How its questions are put."""
        return self._params.annotator

    def ask(self, questions: Sequence[Question], failures_allowed: int) -> list[Answer]:
        """One answer for each question, in order.

        Args:
            failures_allowed: once more than these have failed nothing more is asked; the rest fails unasked.
        """
        failed = _Counter()

        def ask_one(question: Question) -> Answer:
            if failed.count > failures_allowed:
                return Answer(None, f"not asked, after {failures_allowed + 1} others had failed: {failed.reason}")
            answer = self._ask(question)
            if answer.verdict is None:
                failed.add(answer.reason)
            return answer

        with ThreadPoolExecutor(self._params.concurrency) as threads:
            try:
                return list(threads.map(ask_one, questions))
            except BaseException:
                self._closing.set()  # nobody waits for the answers any more: ask for no more of them
                threads.shutdown(cancel_futures=True)
                raise

    def close(self) -> None:
        self._closing.set()
        self._http.close()
        self._cache.__exit__(None, None, None)

    def __enter__(self) -> "Judge":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, question: Question) -> Answer:
        params = self._params
        body = {"model": params.model, "messages": [dict(each) for each in question.messages], **params.decoding}
        key = digest_of({**params.identity(), "request": body})
        try:
            with self._cache.answer(key, self._closing.wait) as claim:
                if claim is None:
                    raise _Failed("nobody waits for the answer any more")
                if claim.reply is not None:
                    return self._answer(claim.reply, question)
                reply = self._fetch(body)
                answer = self._answer(reply, question)
                claim.keep(reply)
                return answer
        except (_Failed, TryAgain, Unreadable) as failure:
            return Answer(None, str(failure)[:REASON_SHOWN])

    def _answer(self, reply: Mapping[str, Any], question: Question) -> Answer:
        """What a reply says and took. Raises Unreadable."""
        try:
            verdict = number(question.read(reply), 0, 1, "the judge's verdict")
            usage = reply.get("usage")
            prompt, completion = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens"))
        except Unreadable:
            raise
        except ValueError as error:
            raise Unreadable(str(error)) from error
        dollars = prompt * self._params.dollars_per_million_prompt_tokens
        dollars += completion * self._params.dollars_per_million_completion_tokens
        return Answer(verdict, "", prompt, completion, dollars / 1_000_000)

    def _fetch(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a request, after as many attempts as it takes and is allowed."""
        return persist(lambda: self._attempt(body), self._params.attempts, self._params.backoff_s, self._closing.wait)

    def _attempt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            response = self._http.post(self._url, json=body)
        except (httpx.RequestError, RuntimeError) as error:  # RuntimeError: the client was closed meanwhile
            raise TryAgain(f"the judge cannot be reached ({type(error).__name__}: {error})") from error
        if may_pass(response.status_code):
            raise TryAgain(_refusal(response), retry_after_s(response.headers.get("retry-after", "")))
        if not response.is_success:
            raise _Failed(_refusal(response))
        try:
            reply = response.json()
        except (ValueError, RecursionError) as error:
            raise TryAgain("the judge's reply is no JSON") from error
        if not isinstance(reply, dict):
            raise Unreadable("the judge's reply is no JSON object")
        return reply


class _Counter:
    """How many failed, and why the first one did; counted from several threads."""

    def __init__(self) -> None:
        self.count, self.reason = 0, ""
        self._lock = threading.Lock()

    def add(self, reason: str) -> None:
        with self._lock:
            self.reason = self.reason or reason
            self.count += 1


def _refusal(response: httpx.Response) -> str:
    return f"the judge answered {response.status_code}: {' '.join(response.text.split())}"[:REASON_SHOWN]


def _count(usage: object, name: str) -> int:
    """Tokens that a reply took; 0 where it does not say."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return 0 if value is None else int(number(value, 0, MOST_TOKENS, f"the judge's count of {name}"))
