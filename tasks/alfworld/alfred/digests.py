"""Digests of the domain and the grammar that the engine supports, which all 4,027 released games have (json_2.1.1).

The grammar is hashed without the task sentence, the only part that differs between games.
"""

import hashlib
import re

DOMAIN = "0af55e7f92d12b09d28515aa730e4d03fddd17228ef1fd7b18a3ee8ba49b27b9"
GRAMMAR = "10da93e13b58e1a6039723f5d4a59ceae7c60772515bfab9fc603bafa7f8ee06"

_TASK = re.compile(r'(?<="rhs": "Your task is to: )[^"]*')


def digest(text: str) -> str:
    """SHA-256 (hex)."""
    return hashlib.sha256(text.encode()).hexdigest()


def task_sentence(grammar: str) -> str:
    """Returns the text after "Your task is to: " in the grammar; empty if it has no task."""
    found = _TASK.search(grammar)
    return found[0] if found else ""


def without_task(grammar: str) -> str:
    """Returns the grammar without its task sentence."""
    return _TASK.sub("", grammar, count=1)
