"""The arguments of a call."""

from a2rl.labels.values import Value


class Arguments:
    """The arguments of a call, evaluated."""

    def __init__(self, positional: list[Value], named: dict[str, Value]) -> None:
        self.positional, self.named = positional, named

    def all(self) -> dict[str, Value]:
        """Returns all arguments, positional ones under their number."""
        return {**{str(place): each for place, each in enumerate(self.positional)}, **self.named}

    def marks(self) -> set[str]:
        """Returns the marks of all arguments."""
        return {mark for each in (*self.positional, *self.named.values()) for mark in each.everything()}
