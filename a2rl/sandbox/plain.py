"""Plain values as one line of JSON: what judge and cell tell each other.

Contract: None, bool, int, float, complex, str, bytes, list, tuple, dict, set and frozenset, nested, come back equal and
of the same types. `decode` makes nothing else, whoever wrote the line: no object of another class, no code. A value of
a subclass (a Counter, an IntEnum, a named tuple) is sent as what it is derived from, which compares alike; anything
else (an iterator, a function, a class) cannot be sent.
"""

import json
from typing import Any

MAX_LINE = 1 << 20
"""Bytes of a line at most."""
_FAMILIES: tuple[tuple[str, type], ...] = (("t", tuple), ("s", set), ("z", frozenset))


class NotPlain(ValueError):
    """A value that cannot be sent, or a line that holds none."""


def encode(value: Any) -> bytes:
    """A value as a line.

    Raises:
        NotPlain: it holds something that is not plain, is nested too deep or too large.
    """
    try:
        line = json.dumps(_dressed(value)).encode() + b"\n"
    except (RecursionError, ValueError) as error:
        raise NotPlain(str(error)) from error
    if len(line) > MAX_LINE:
        raise NotPlain("the value is too large")
    return line


def decode(line: bytes) -> Any:
    """The value of a line.

    Raises:
        NotPlain: it is none of ours.
    """
    try:
        return json.loads(line, object_hook=_undressed)
    except (RecursionError, ValueError, TypeError, KeyError) as error:
        raise NotPlain(f"no plain value: {error}") from error


def _dressed(value: Any) -> Any:
    """The value as JSON has it; what JSON lacks is an object with one key."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case list():
            return [_dressed(each) for each in value]
        case dict():
            return {"d": [[_dressed(key), _dressed(each)] for key, each in value.items()]}
        case _:
            return _marked(value)


def _marked(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple | set | frozenset):
        mark = next(mark for mark, family in _FAMILIES if isinstance(value, family))
        return {mark: [_dressed(each) for each in value]}
    if isinstance(value, bytes):
        return {"b": value.hex()}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    raise NotPlain(f"a value of type {type(value).__name__} is not plain data")


def _undressed(found: dict[str, Any]) -> Any:
    ((mark, inner),) = found.items()
    for known, family in _FAMILIES:
        if mark == known:
            return family(inner)
    match mark:
        case "d":
            return dict(inner)
        case "b":
            return bytes.fromhex(inner)
        case "c":
            real, imaginary = inner
            return complex(real, imaginary)
    raise NotPlain(f"unknown mark {mark!r}")
