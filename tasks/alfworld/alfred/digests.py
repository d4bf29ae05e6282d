"""Which domain and grammar the engine knows: all 4,027 released games (ALFWorld json_2.1.1) embed the same two texts.

The grammar is hashed without the task sentence, in which alone the games' grammars differ.
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
    """What follows "Your task is to: " in the grammar; empty if it has no task."""
    found = _TASK.search(grammar)
    return found[0] if found else ""


def without_task(grammar: str) -> str:
    """The grammar without its task sentence."""
    return _TASK.sub("", grammar, count=1)
