"""Client of the grading server; it also knows how much time is left."""

import os
import time
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

RETRIES = 8
"""A request is repeated so often if the server does not answer, over two minutes: it may be starting again."""


class Grader:
    """Client of the grading server."""

    def __init__(self, url: str) -> None:
        self.url, self.server = url, requests.Session()
        # Weights that are submitted twice are graded once, so that repeating a submission is safe.
        retries = Retry(RETRIES, backoff_factor=0.5, allowed_methods=None, respect_retry_after_header=False)
        self.server.mount("http://", HTTPAdapter(max_retries=retries))
        self.deadline = 0.0
        self.sync_clock()

    def sync_clock(self) -> None:
        """Asks for the time left; needed after each submission, since waiting for a grade may extend the deadline."""
        self.deadline = time.monotonic() + float(self.server.get(f"{self.url}/time", timeout=30).json()["remaining"])

    def remaining_s(self) -> float:
        """Returns the seconds until the deadline."""
        return self.deadline - time.monotonic()

    def submit(self, checkpoint: Path, method: str = "", parent: str = "", note: str = "") -> float | None:
        """Submits a checkpoint.

        Args:
            checkpoint: Its folder.
            method: How it was made; this and the following are recorded as claims.
            parent: What it was made from.
            note: Anything else.

        Returns:
            By how many points the score is higher than the base model's; None where the submission was refused or could
            not be scored, or the base model has no score.
        """
        claims = {"method": method, "parent": parent, "note": note}
        request = {"model_path": str(checkpoint), **{name: text for name, text in claims.items() if text}}
        reply = self.server.post(f"{self.url}/submit", json=request, timeout=None)
        self.sync_clock()
        if not reply.ok:
            log(f"{checkpoint.name}: refused ({reply.status_code}): {error_detail(reply)}")
            return None
        answer = reply.json()
        gain: float | None = answer["improvement"]
        points = "" if gain is None else f", {gain:+.1f} points"
        log(f"{checkpoint.name}: score {answer['score']:.1f}{points}; best {answer['best']['score']:.1f}")
        return gain


def error_detail(reply: requests.Response) -> str:
    """Returns the reason that the server gives for an error."""
    try:
        return str(reply.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:200]


def log(message: str) -> None:
    """Prints a line with the time of day; of several processes, only the first does."""
    if os.environ.get("RANK", "0") == "0":
        print(f"[{time.strftime('%H:%M:%S')}] {message}", flush=True)
