"""Numbers that come from outside: a judge's reply, a file of annotations."""

SHOWN = 40


def number(value: object, low: float, high: float, what: str) -> float:
    """The value, if it is a number from `low` to `high`; NaN, infinity, truth values and texts are not.

    Raises:
        ValueError: it is not; the message says what it is.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        shown = repr(value)[:SHOWN] if not isinstance(value, int) or abs(value) < 10**SHOWN else "a huge number"
        raise ValueError(f"{what} is {shown}, not a number from {low:g} to {high:g}")
    return float(value)
