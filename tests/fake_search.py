"""A search engine for tests that can misbehave: the APIs of SearXNG and SerpAPI over a few made-up results.

with fake_engine("slow") as engine:
    httpx.get(f"{engine.url}/search?q=anything&format=json")
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.http_server import Quiet, serving

SLOW_S = 1.5

Found = Callable[[str], list[tuple[str, str, str]]]
"""Title, text and address of what a query finds."""


def one_page(query: str) -> list[tuple[str, str, str]]:
    return [("A page", f"All about {query}.", "https://example.org/page")]


class FakeEngine:
    """Records its requests. `mood` is how it behaves, and can be changed at any time."""

    def __init__(self, url: str, mood: str, found: Found) -> None:
        self.url, self.mood, self.found = url, mood, found
        self.body = ""
        """The answer of a friendly engine, if it is not that of SearXNG and SerpAPI."""
        self.asked: list[dict[str, str]] = []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        params = {name: values[0] for name, values in parse_qs(urlsplit(handler.path).query).items()}
        self.asked.append(params)
        name = self.mood.removesuffix("-once")
        if self.mood.endswith("-once") and sum(each == params for each in self.asked) > 1:
            name = "kind"
        results = self.found(params["q"])
        replies: dict[str, tuple[int, str]] = {
            "busy": (429, "too many requests"),
            "broken": (500, "out of order"),
            "refusing": (403, "no JSON here"),
            "garbled": (200, '{"results": ['),
            "html": (200, "<html>Are you a robot?</html>"),
            "a list": (200, "[1, 2, 3]"),
            "nested": (200, "[" * 100_000),
            "nonsense": (200, '{"results": "none", "organic_results": 7}'),
            "blind": (200, '{"results": [], "unresponsive_engines": [["google", "CAPTCHA"]]}'),
            "odd rows": (200, '{"results": [7, {"content": 3}, {"content": "Kept.", "title": null}]}'),
            "empty": (200, '{"results": []}'),
            "exhausted": (200, '{"error": "Your account has run out of searches."}'),
            "none found": (200, '{"error": "Google hasn\'t returned any results for this query."}'),
        }
        if name == "gone":
            handler.connection.close()
            return
        if name == "slow":
            time.sleep(SLOW_S)
        status, body = replies.get(name, (200, self.body or json.dumps(_reply(results))))
        self._send(handler, status, body.encode(), trickling=name == "trickling")

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, trickling: bool) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        step = 1 if trickling else len(body)
        for start in range(0, len(body), step):
            handler.wfile.write(body[start : start + step])
            time.sleep(0.05 if trickling else 0)


def _reply(results: list[tuple[str, str, str]]) -> dict[str, Any]:
    return {
        "results": [{"title": title, "content": text, "url": url} for title, text, url in results],
        "organic_results": [{"title": title, "snippet": text, "link": url} for title, text, url in results],
    }


@contextmanager
def fake_engine(mood: str = "kind", found: Found = one_page) -> Iterator[FakeEngine]:
    class Handler(Quiet):
        def respond(self) -> None:
            try:
                engine.answer(self)
            except (ConnectionError, ValueError):
                return  # the client has disconnected

    with serving(Handler) as url:
        engine = FakeEngine(url, mood, found)
        yield engine
