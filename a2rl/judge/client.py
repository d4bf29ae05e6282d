"""Asks a judge many questions concurrently, pays for none twice, and gives the reason for each one that failed.

    with Judge(config) as judge:
        asking = judge.asking(failures_allowed=16)
        asking.put("item", Question(messages, read))     # is asked at once
        answers = asking.answers()

Failed requests are retried where that may help (see a2rl/core/retries.py); `Retry-After` is honoured.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import httpx

from a2rl.core.files import digest_of
from a2rl.core.printable import printable
from a2rl.core.retries import RetryableError, is_retryable_status, read_body, retry_after_s, retry_request
from a2rl.core.token_use import tokens_of
from a2rl.judge.account import Account
from a2rl.judge.cache import AnswerCache
from a2rl.judge.failures import Failures
from a2rl.judge.params import JudgeConfig
from a2rl.judge.parsers import bounded_number

MAX_REASON_CHARS = 200
MAX_REPLY_BYTES = 16 << 20
NO_MORE_QUOTA = "insufficient_quota"
"""OpenAI's code for an account without money. Its status is that of a rate limit, but waiting does not help."""
CHARS_PER_TOKEN = 3
"""A low estimate, for what a reply cost that does not say it."""
UNANSWERED = (httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError)
"""Errors after which the endpoint may have answered, and charged for it, although no whole reply has arrived."""
MOST_TOKENS = ("max_tokens", "max_completion_tokens")
"""The names under which a request limits its reply."""
UNLIMITED_TOKENS = 4_096
"""What a reply is taken to have where the request has no limit and the reply did not arrive."""
DOLLARS = "judge's price, dollars"
"""The measure of an item with the price of its judgement."""


Messages = Sequence[Mapping[str, str]]
Read = Callable[[Mapping[str, Any]], float]
"""Reads the verdict from the body of a reply: a number from 0 to 1, whatever it means to the task.

Raises UnreadableReplyError where the body has no verdict in the form that was asked for."""


@dataclass(frozen=True, slots=True)
class Question:
    """The messages for the judge, and the function that reads its answer."""

    messages: Messages
    read: Read


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict, or None with the reason. Tokens and price are those of the original request."""

    verdict: float | None
    reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0
    status: int = 0
    """The HTTP status with which the endpoint refused; 0 if it did not."""


class RefusedError(Exception):
    """A request failed and will not be retried; the text is the reason."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


class Judge(AbstractContextManager["Judge"]):
    """The client of one endpoint."""

    def __init__(self, config: JudgeConfig) -> None:
        self._config, self._params = config, config.params
        self._who = config.served_digest or config.params.base_url
        """Two models that are served here or elsewhere may have the same name."""
        self.annotator = config.params.annotator
        """The name of the prompt format, which the task knows."""
        headers = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
        limits = httpx.Limits(max_connections=self._params.concurrency)
        self._url = f"{self._params.base_url.rstrip('/')}/chat/completions"
        self._http = httpx.Client(headers=headers, timeout=self._params.timeout_s, limits=limits)
        self._cache = AnswerCache(config.cache)
        self._account = Account(config.account, config.limit_usd) if config.account else None
        self._closing = threading.Event()
        self._threads = ThreadPoolExecutor(self._params.concurrency)

    def asking(self, failures_allowed: int, failures: Failures | None = None) -> "Asking":
        """Begins to ask the questions of a grade.

        Args:
            failures_allowed: If questions about more items than this fail, the remaining ones fail without being asked.
            failures: The count of them, if the grade asks more than these.
        """
        return Asking(self, self._threads, failures_allowed, failures or Failures())

    def ask(self, questions: Sequence[Question], failures_allowed: int) -> list[Answer]:
        """Asks questions concurrently; returns one answer for each, in order. Raises the same errors as `Asking`."""
        asking = self.asking(failures_allowed)
        for place, question in enumerate(questions):
            asking.put(str(place), question)
        return list(asking.answers().values())

    def ask_one(self, question: Question) -> Answer:
        """Asks a question, or returns its stored answer.

        Raises:
            SpendLimitError: The run's money is used up.
            InfrastructureError: The cache or the account cannot be used.
        """
        messages = [dict(each) for each in question.messages]
        body = {"model": self._params.model, "messages": messages, **(self._params.decoding or {})}
        key = digest_of({**self._params.identity(), "who": self._who, "request": body})
        try:
            with self._cache.claimed(key, self._wait) as known:
                if known is not None:
                    return self._answer(known, question)
                params = self._params
                reply = retry_request(
                    lambda: self._attempt(body), params.attempts, params.backoff_s, self._closing.wait
                )
                answer = self._answer(reply, question)
                self._cache.store(key, reply)
                return answer
        except (RefusedError, RetryableError, ValueError) as failure:  # ValueError: the reply cannot be read
            return Answer(None, str(failure)[:MAX_REASON_CHARS], status=getattr(failure, "status", 0))

    def __exit__(self, *_: object) -> None:
        """Cancels what is not answered yet, and closes the connections and the cache."""
        self._closing.set()
        self._http.close()
        self._threads.shutdown(cancel_futures=True)
        self._cache.__exit__(None, None, None)

    def _wait(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise RefusedError("the grading was cancelled")

    def _answer(self, reply: Mapping[str, Any], question: Question) -> Answer:
        """Returns the verdict and the cost of a reply; raises UnreadableReplyError."""
        verdict = bounded_number(question.read(reply), 0, 1, "the judge's verdict")
        prompt, completion = _usage(reply)
        return Answer(verdict, "", prompt, completion, self._params.price(prompt, completion))

    def _attempt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the reply to a request that is made once."""
        if self._account is not None:
            self._account.require_money()
        try:
            with self._http.stream("POST", self._url, json=body) as response:
                text = read_body(response.iter_bytes(), MAX_REPLY_BYTES, self._params.timeout_s)
        except RetryableError:  # the reply is too long, or too slow
            self._charge(_most_tokens(body))
            raise
        except UNANSWERED as error:
            self._charge(_most_tokens(body))
            raise RetryableError(f"the judge cannot be reached ({type(error).__name__}: {error})") from error
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:  # RuntimeError: the client was closed
            raise RetryableError(f"the judge cannot be reached ({type(error).__name__}: {error})") from error
        if not response.is_success:
            raise _refusal(response, text.decode(errors="replace"), response.status_code)
        try:
            reply = json.loads(text)
            if not isinstance(reply, dict):
                raise ValueError
        except (ValueError, RecursionError) as error:
            self._charge(_most_tokens(body))
            raise RetryableError("the judge's reply is not JSON, or no object") from error
        if status := _status_inside(reply):
            raise _refusal(response, text.decode(errors="replace"), status)
        self._charge(_tokens(body, reply, len(text)))  # whether or not the reply can be read
        return reply

    def _charge(self, tokens: tuple[int, int]) -> None:
        """Adds the price of a request to the run's account."""
        if self._account is not None:
            config = self._config
            self._account.add(config.purpose, config.job, *tokens, self._params.price(*tokens))


class Asking:
    """The questions of a grade, each of which is asked as soon as it is put, as many at once as the judge allows."""

    def __init__(self, judge: Judge, threads: ThreadPoolExecutor, failures_allowed: int, failures: Failures) -> None:
        self._judge, self._threads, self._failures = judge, threads, failures
        self.annotator = judge.annotator
        """See `Judge.annotator`."""
        self.failures_allowed = failures_allowed
        """See `Judge.asking`. A grader that has only a part of the items knows from it what the whole tolerates."""
        self._asked: dict[str, Future[Answer]] = {}
        self._error: BaseException | None = None

    def put(self, item: str, question: Question) -> None:
        """Asks the question about an item.

        Raises:
            SpendLimitError: The run's money is used up; answers that have arrived are cached.
            InfrastructureError: The cache or the account cannot be used.
        """
        if self._error is not None:  # nothing can come of this grade, so that no more need be generated for it
            raise self._error
        self._asked[item] = self._threads.submit(self._ask, item, question)

    def answers(self) -> dict[str, Answer]:
        """Waits for the answers and returns them by item, in the order of the questions. Raises as `put` does."""
        return {item: asked.result() for item, asked in self._asked.items()}

    def _ask(self, item: str, question: Question) -> Answer:
        try:
            if len(failed := self._failures.known()) > self.failures_allowed:
                why = f"not asked, after {self.failures_allowed + 1} others had failed: {next(iter(failed.values()))}"
                return Answer(None, why)
            answer = self._judge.ask_one(question)
            if answer.verdict is None:
                self._failures.add(item, answer.reason)
        except BaseException as error:
            self._error = error
            raise
        return answer


def _status_inside(reply: Mapping[str, Any]) -> int:
    """Returns the status of an error that is sent as if it were an answer, as routers do; 0 if there is none."""
    error = reply.get("error")
    code = error.get("code") if isinstance(error, dict) and not reply.get("choices") else None
    return code if isinstance(code, int) and 400 <= code < 600 else 0


def _refusal(response: httpx.Response, text: str, status: int) -> Exception:
    reason = printable(f"the judge answered {status}: {' '.join(text.split())}", MAX_REASON_CHARS)
    if is_retryable_status(status) and NO_MORE_QUOTA not in text:
        return RetryableError(reason, retry_after_s(response.headers.get("retry-after", "")), status)
    return RefusedError(reason, status)


def _tokens(body: Mapping[str, Any], reply: Mapping[str, Any], reply_bytes: int) -> tuple[int, int]:
    """Returns the tokens of prompt and completion, estimated by their length if the endpoint does not say."""
    prompt, completion = _usage(reply)
    if prompt:
        return prompt, completion
    return len(json.dumps(body)) // CHARS_PER_TOKEN, reply_bytes // CHARS_PER_TOKEN


def _most_tokens(body: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the most tokens that a request without a whole reply may have had: the provider may charge for them."""
    asked_for = [body.get(name) for name in MOST_TOKENS]
    completion = next((most for most in asked_for if isinstance(most, int)), UNLIMITED_TOKENS)
    return len(json.dumps(body)), completion  # a token has at least one character


def _usage(reply: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the tokens of prompt and completion; 0 where a reply does not say."""
    usage = reply.get("usage")
    used = tokens_of(usage if isinstance(usage, dict) else {})
    return used.prompt_tokens, used.completion_tokens
