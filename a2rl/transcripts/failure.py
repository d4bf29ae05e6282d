"""Why an agent system gave up, in plain words, from what it said itself.

why(reading, exit_code=1)     # "the API refused the key (401)"

The words of an agent system are its own and change; what is known here was seen with the versions that agents/ pins.
"""

import re
from typing import NamedTuple

from a2rl.transcripts.reading import Reading

MAX_WORDS = 300
ENDED_BY_US = {None, 0, -9, -15, 137, 143}
"""Nothing to explain where the end was ours: a deadline is no failure."""


class Cause(NamedTuple):
    """A reason, and the words by which it is known."""

    words: str
    reason: str


CAUSES = (
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


def why(reading: Reading, exit_code: int | None) -> str | None:
    """The reason why it failed; None if it did not, or if its end was not its own doing.

    Args:
        reading: its transcript.
        exit_code: its exit status; negative: the signal that ended it; None: it was ended.
    """
    if reading.failure is None and exit_code in ENDED_BY_US:
        return None
    words = reading.failure or reading.stray
    reason = next((cause.reason for cause in CAUSES if re.search(cause.words, words, re.IGNORECASE)), None)
    said = " ".join(words.split())
    said = said if len(said) <= MAX_WORDS else said[-MAX_WORDS:]
    if reason is None:
        return f"it ended with exit status {exit_code}" + (f": {said}" if said else "")
    return f"{reason}: {said}"
