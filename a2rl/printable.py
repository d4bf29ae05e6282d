"""Makes any text safe to print: what cannot be seen, or would be obeyed instead of shown, becomes a visible escape.

    printable("v1\\x1b[2J")       # v1\\x1b[2J, as eight more characters
    printable("a\\nb")            # a\\nb on one line; printable(text, lines=True) keeps line breaks and tabs

Whatever an agent named or wrote goes through here on its way to a terminal, a log line, a page or MLflow. The doors
are few: the console (a2rl/cli/console.py), errors (a2rl/errors.py), logs (a2rl/event_log.py, a2rl/supervisor.py), the
report's template environment, the tags and parameters of MLflow. Only the standard library is used: the supervisor
needs it, too.
"""

import json
import re
import unicodedata
from typing import Any

_UNSEEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: what terminals obey
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # soft hyphen, joiners, fillers
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, line and paragraph separators, bidirectional controls
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"  # blanks, variation selectors, byte order mark
    "\ud800-\udfff\ue000-\uf8ff"  # lone surrogates, private use
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # formats of single scripts
    "\U000e0000-\U000e0fff\U000f0000-\U0010ffff"  # tags, more variation selectors, private use
    "]+"
)
_FIRST_MARK = "\u0300"
MAX_MARKS = 4
"""Combining marks on one character: more of them paint over the lines around."""
MAX_CHARS = 10_000


def printable(text: str, limit: int = MAX_CHARS, *, lines: bool = False) -> str:
    """The text with visible escapes (`\\x1b`, `\\u202e`, `\\U000e0041`) in place of what is no visible character.

    Args:
        limit: characters of `text` that are looked at; how many were left out is said at the end.
        lines: line breaks and tabs stay as they are.
    """
    shown = text[:limit]
    if not (shown.isascii() and shown.isprintable()):
        table = _IN_LINES if lines else _ESCAPES
        shown = _UNSEEN.sub(lambda found: "".join(map(table.__getitem__, found[0])), shown)
        if max(shown, default="") >= _FIRST_MARK:
            shown = _thinned(shown)
    left_out = len(text) - limit
    return f"{shown} [and {left_out} more characters]" if left_out > 0 else shown


def printable_json(value: Any) -> str:
    """A value as one line of JSON in visible ASCII: the same value for a program, and nothing that a terminal obeys."""
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")


class _Escapes(dict[str, str]):
    """By character; made as they are needed, since logs may be full of them."""

    def __missing__(self, char: str) -> str:
        code = ord(char)
        escape = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
        return self.setdefault(char, escape)


_ESCAPES = _Escapes({"\n": "\\n", "\t": "\\t", "\r": "\\r"})
_IN_LINES = _Escapes({"\n": "\n", "\t": "\t", "\r": "\\r"})


def _thinned(text: str) -> str:
    """With at most so many combining marks on one character; those beyond become escapes."""
    marks, kept = 0, []
    for char in text:
        marks = marks + 1 if char >= _FIRST_MARK and unicodedata.category(char).startswith("M") else 0
        kept.append(char if marks <= MAX_MARKS else _ESCAPES[char])
    return "".join(kept)
