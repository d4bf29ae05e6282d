"""Finds out from an agent system's own messages why it failed, and says so in plain words.

failure_reason(reading, exit_code=1)     # "the API refused the key (401)"

Agent systems word their messages differently and change them. The patterns here match the versions pinned in agents/.
"""

import re
from typing import NamedTuple

from a2rl.agents.transcripts.reading import Reading

MAX_WORDS = 300
EXPECTED_EXITS = {None, 0, -9, -15, 137, 143}
"""Exit statuses that need no explanation, because the agent succeeded or the pipeline ended it."""


class Cause(NamedTuple):
    """A reason, and a regular expression for the messages that indicate it."""

    words: str
    reason: str


FAILURE_CAUSES = (
    Cause(r"max[_ ]turns|maximum number of turns|maximum iterations|LimitsExceeded", "it reached its turn limit"),
    Cause(r"\b401\b|authentication|unauthorized|invalid.api.key|api_key_invalid", "the API refused the key (401)"),
    Cause(r"not logged in|missing environment variable|no api key|api.key.*(not set|must be set)", "it has no API key"),
    Cause(r"credit balance|insufficient_quota|billing|payment", "the account has no credit left"),
    Cause(r"\b429\b|rate.?limit|too many requests|resource.?exhausted", "the API's rate limit (429) did not lift"),
    Cause(r"\b403\b|permission.?denied|forbidden", "the API refused access (403)"),
    Cause(r"context.?(window|length)|prompt is too long", "the conversation outgrew the model's context window"),
    Cause(r"\b404\b|not.?found|does not exist", "the API does not know the model, or the address (404)"),
    Cause(r"timed? ?out|timeout", "the API did not answer in time"),
    Cause(
        r"connection (error|refused|failed|reset|closed)|could not connect|unable to connect|sending request"
        r"|ENOTFOUND|ECONN|EAI_AGAIN|unreachable|resolve",
        "it could not reach the API",
    ),
    Cause(
        r"json parse|expecting (value|property)|stream (disconnected|closed|ended)|decod|malformed",
        "the API's answer made no sense",
    ),
    Cause(r"\b5\d\d\b|overloaded|high demand|internal.?server|unavailable", "the API failed (5xx)"),
)


def failure_reason(reading: Reading, exit_code: int | None) -> str | None:
    """Returns why an agent system failed; None if it did not fail, or if the pipeline ended it.

    Args:
        reading: The agent's transcript.
        exit_code: Its exit status. A negative number is the signal that ended it; None means that the pipeline did.
    """
    if reading.failure is None and exit_code in EXPECTED_EXITS:
        return None
    words = reading.failure or reading.stray
    reason = next((cause.reason for cause in FAILURE_CAUSES if re.search(cause.words, words, re.IGNORECASE)), None)
    said = " ".join(words.split())
    said = said if len(said) <= MAX_WORDS else said[-MAX_WORDS:]
    if reason is None:
        return f"it ended with exit status {exit_code}" + (f": {said}" if said else "")
    return f"{reason}: {said}"
