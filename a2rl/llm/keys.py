"""The user's API keys: which process needs which, and how they are passed on.

No child of the pipeline has a key in its environment, because every process of the same user can read that. Keys are
sent on the first line of a child's standard input instead, together with the secrets that the child must remove from
everything it writes (a2rl/core/secrets.py).
"""

import json
from contextlib import suppress
from typing import TextIO
from urllib.parse import urlsplit

from a2rl.agent_systems.definition import Agent
from a2rl.config.params import load_params
from a2rl.core.secrets import MIN_CHARS, known_secrets, register_secrets
from a2rl.core.settings import Settings

SEARCH_ENGINES = ("SERPAPI_KEY", "SERPAPI_API_KEY", "SEARXNG_URL")
PLACEHOLDER_KEY = "none-needed"
"""Replaces the key if the LLM is the user's own: some agent systems do not start without a key."""


def grader_keys(settings: Settings) -> dict[str, str]:
    """Returns the keys of the judges and search engines that graders use."""
    return settings.keys((*load_params(settings.root).judge_keys(), *SEARCH_ENGINES))


def register_run_secrets(agent: Agent, settings: Settings) -> None:
    """Registers the secrets of a run, which this process and its children then remove from everything they write.

    In a URL, only the password is secret.
    """
    named = {**grader_keys(settings), **settings.keys(agent.forward_env)}
    register_secrets({name: _password(value) if "://" in value else value for name, value in named.items()})


def keys_too_short_to_hide(agent: Agent, settings: Settings) -> list[str]:
    """Returns the names of keys that are not removed from outputs, because they are too short to tell from words."""
    return [name for name, value in settings.keys(agent.forward_env).items() if len(value) < MIN_CHARS]


def keys_message(use: dict[str, str]) -> str:
    """Returns the first line for a child, with keys to use and secrets to hide."""
    return json.dumps({"use": use, "hide": known_secrets()})


def receive_keys(stdin: TextIO) -> None:
    """Reads the first line in a child. If the parent has died, there are no keys."""
    told = json.loads(stdin.readline() or '{"use": {}, "hide": {}}')
    Settings.hand_over(told["use"])
    register_secrets(told["hide"])


def _password(url: str) -> str:
    with suppress(ValueError):
        return urlsplit(url).password or ""
    return ""
