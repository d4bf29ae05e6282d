"""Validation of numbers from outside, such as a judge's reply or a file of annotations."""

SHOWN = 40


def bounded_number(value: object, low: float, high: float, what: str) -> float:
    """Returns the value if it is a number from `low` to `high`; NaN, infinity, booleans and text are not.

    Args:
        value: The value to check.
        low: The smallest number allowed.
        high: The largest number allowed.
        what: Names the value in the error message.

    Raises:
        ValueError: The value is not such a number; the message shows it.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        shown = repr(value)[:SHOWN] if not isinstance(value, int) or abs(value) < 10**SHOWN else "a huge number"
        raise ValueError(f"{what} is {shown}, not a number from {low:g} to {high:g}")
    return float(value)
