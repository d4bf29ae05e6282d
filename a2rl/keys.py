"""The user's keys: who needs which, and how they get them.

No child of the pipeline has a key in its environment, which every process of the same user can read: it is told on
the first line of its standard input. It is told as well what it must not write down (a2rl/secrets.py).
"""

import json
import os
import subprocess
from contextlib import suppress
from typing import Any, TextIO
from urllib.parse import urlsplit

from a2rl.agent import Agent
from a2rl.errors import UsageError
from a2rl.params import load_params
from a2rl.secrets import MIN_CHARS, known, learn
from a2rl.settings import Settings

SEARCH_ENGINES = ("SERPAPI_API_KEY", "SEARXNG_URL")


def grader_keys(settings: Settings) -> dict[str, str]:
    """Of the judges and search engines that graders ask."""
    return settings.forwarded((*load_params(settings.root).judge_keys(), *SEARCH_ENGINES))


def learn_secrets(agent: Agent, settings: Settings) -> None:
    """From here on this process, and those that it tells, leave out of all that they keep what is secret in a run."""
    learn(secrets_of(agent, settings))


def secrets_of(agent: Agent, settings: Settings) -> dict[str, str]:
    """The values that nothing of a run may show. Of an address that is its password alone."""
    named = {**grader_keys(settings), **settings.forwarded(agent.forward_env)}
    return {name: _password(value) if "://" in value else value for name, value in named.items()}


def too_short(agent: Agent, settings: Settings) -> list[str]:
    """Keys that are too short to be told from ordinary words, and are not left out."""
    return [name for name, value in settings.forwarded(agent.forward_env).items() if len(value) < MIN_CHARS]


def tell(process: "subprocess.Popen[Any]", use: dict[str, str]) -> None:
    """Writes the first line for a child: what it may use, and what it must not write down."""
    assert process.stdin is not None
    with suppress(OSError):  # it has died; whoever watches it finds out
        os.write(process.stdin.fileno(), first_line(use).encode())


def first_line(use: dict[str, str]) -> str:
    return json.dumps({"use": use, "hide": known()}) + "\n"


def listen(stdin: TextIO) -> None:
    """In a child: takes what it is told before anything else. Where the parent has died, that is nothing."""
    told = json.loads(stdin.readline() or '{"use": {}, "hide": {}}')
    Settings.hand_over(told["use"])
    learn(told["hide"])


def refuse_password(url: str, name: str) -> None:
    """Addresses are written down in many places; keys belong into variables of their own.

    Raises:
        UsageError: the address may hold a key: a user name, a password or a query.
    """
    if "@" in url.partition("//")[2].partition("/")[0] or "?" in url:
        raise UsageError(
            f"{name} holds a user name, a password or a query, and is kept with the run: put the key into the "
            "environment variable that is meant for it"
        )


def _password(url: str) -> str:
    with suppress(ValueError):
        return urlsplit(url).password or ""
    return ""
