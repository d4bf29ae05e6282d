"""Makes any text safe to print: characters that are invisible, or control the terminal, become visible escapes.

    printable("v1\\x1b[2J")       # v1\\x1b[2J, as eight more characters
    printable("a\\nb")            # a\\nb on one line; printable(text, lines=True) keeps line breaks and tabs

Text from an agent passes through here before it reaches a terminal, a log line, a page or MLflow. The callers are the
console (a2rl/cli/console.py), errors (a2rl/core/errors.py), logs (a2rl/core/event_log.py, a2rl/sandbox/agent_log.py),
the report's template environment, and the tags and parameters of MLflow. No library: escaping for one target (HTML,
shell) leaves bidirectional and zero-width characters as they are. Standard library only: the supervisor imports this
module.
"""

import json
import re
import unicodedata
from typing import Any

_UNSEEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: control characters, which terminals execute
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
"""Combining marks on one character: more of them would draw over the neighbouring lines."""
MAX_CHARS = 10_000


def printable(text: str, limit: int = MAX_CHARS, *, lines: bool = False) -> str:
    """Returns the text with visible escapes (`\\x1b`, `\\u202e`, `\\U000e0041`) for all invisible characters.

    Args:
        limit: The number of characters to keep; a note at the end says how many were left out.
        lines: Whether to keep line breaks and tabs.
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
    """Returns a value as one line of JSON in printable ASCII."""
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")


class _Escapes(dict[str, str]):
    """Escapes by character, cached on first use because logs may be full of them."""

    def __missing__(self, char: str) -> str:
        code = ord(char)
        escape = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
        return self.setdefault(char, escape)


_ESCAPES = _Escapes({"\n": "\\n", "\t": "\\t", "\r": "\\r"})
_IN_LINES = _Escapes({"\n": "\n", "\t": "\t", "\r": "\\r"})


def _thinned(text: str) -> str:
    """Escapes all but the first MAX_MARKS combining marks of each character."""
    marks, kept = 0, []
    for char in text:
        marks = marks + 1 if char >= _FIRST_MARK and unicodedata.category(char).startswith("M") else 0
        kept.append(char if marks <= MAX_MARKS else _ESCAPES[char])
    return "".join(kept)
