"""The run's search and judge, for rollouts: they are asked at the address of the grading API.

    from services import Search, judge

    search = Search()                                # a search for `rollout.QuestionEnvironment`
    search("population of Lyon in 1901")             # the best results; at most 3
    judge(question.problem, "Lyon")                  # 1.0 or 0.0, for a question of data/train.jsonl

Both have a quota, and refuse questions of the eval set. Only the standard library is needed.
"""

import json
import os
import time
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from research import Hit

ATTEMPTS = 5
TIMEOUT_S = 300.0
_OPENER = build_opener(ProxyHandler({}))  # the address is on this machine, so no proxy is asked


class ServiceError(RuntimeError):
    """The request was refused, for example because the quota is used up; the text is the reason."""


class Search:
    """The run's search. A search that fails finds `None`, which an episode shows as "The search failed."."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url or os.environ["SEARCH_URL"]

    def __call__(self, query: str) -> list[Hit] | None:
        """Returns the results of a query, or None if the search failed. Raises ServiceError if it is refused."""
        found = _post(self.url, {"query": query})
        return None if found is None else [Hit(**hit) for hit in found["hits"]]


def judge(problem: str, answer: str, url: str | None = None) -> float | None:
    """Returns 1.0 if an answer to a training question is right, else 0.0; None if the judge gave no verdict.

    Raises:
        ServiceError: It is no training question, or the quota is used up.
    """
    said = _post(url or os.environ["JUDGE_URL"], {"question": problem, "answer": answer})
    return None if said is None else float(said["verdict"])


def _post(url: str, body: dict[str, str]) -> dict[str, Any] | None:
    """Returns the answer; None if the service could not give one, however often it was asked."""
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    for attempt in range(ATTEMPTS):
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except HTTPError as error:
            if error.code >= 500:  # the service has tried several times itself
                return None
            if error.code != 429:
                raise ServiceError(json.load(error)["error"]) from error
        except URLError:
            pass  # it is being restarted
        time.sleep(2**attempt)
    return None
