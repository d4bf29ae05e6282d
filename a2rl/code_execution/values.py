"""Plain values as one line of JSON: the protocol between tester and cell.

Contract: None, bool, int, float, complex, str, bytes, list, tuple, dict, set and frozenset, nested, arrive as equal
values of the same types. Whoever wrote a line, `decode` builds nothing else: no object of another class, no code. A
value of a subclass (a Counter, an IntEnum, a named tuple) is sent as its base type, which compares equal; anything else
(an iterator, a function, a class) cannot be sent. No library: pickle executes code, and JSON and msgpack lose types.
"""

import json
from typing import Any

MAX_LINE = 1 << 20
"""Maximum length of a line in bytes."""
_FAMILIES: tuple[tuple[str, type], ...] = (("t", tuple), ("s", set), ("z", frozenset))


class NotPlainError(ValueError):
    """A value cannot be sent, or a line does not contain a plain value."""


def encode(value: Any) -> bytes:
    """Encodes a value as a line.

    Raises:
        NotPlainError: The value is too large or too deeply nested, or contains something that is not plain.
    """
    try:
        line = json.dumps(_to_json(value)).encode() + b"\n"
    except (RecursionError, ValueError) as error:
        raise NotPlainError(str(error)) from error
    if len(line) > MAX_LINE:
        raise NotPlainError("the value is too large")
    return line


def decode(line: bytes) -> Any:
    """Decodes the value of a line.

    Raises:
        NotPlainError: The line was not made by `encode`.
    """
    try:
        return json.loads(line, object_hook=_from_json)
    except (RecursionError, ValueError, TypeError, KeyError) as error:
        raise NotPlainError(f"not a plain value: {error}") from error


def _to_json(value: Any) -> Any:
    """Converts a value to JSON types; a type that JSON does not have becomes an object with one key."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case list():
            return [_to_json(each) for each in value]
        case dict():
            return {"d": [[_to_json(key), _to_json(each)] for key, each in value.items()]}
        case _:
            return _tagged(value)


def _tagged(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple | set | frozenset):
        mark = next(mark for mark, family in _FAMILIES if isinstance(value, family))
        return {mark: [_to_json(each) for each in value]}
    if isinstance(value, bytes):
        return {"b": value.hex()}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    raise NotPlainError(f"a value of type {type(value).__name__} is not plain data")


def _from_json(found: dict[str, Any]) -> Any:
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
    raise NotPlainError(f"unknown mark {mark!r}")
