"""The texts of the games."""

from collections.abc import Sequence

INTRO = "-= Welcome to TextWorld, ALFRED! =-\n\n{}\n\nYour task is to: {}"
NOTHING_HAPPENS = "Nothing happens."
EMPTY_HANDED = "You are not carrying anything."
MIDDLE_OF_ROOM = "You are in the middle of a room. Looking quickly around you, you see {}."
FACING = "You are facing the {}. Next to it, you see {}."


def listing(names: Sequence[str]) -> str:
    """Returns "nothing", "a", "a, and b" or "a, b, and c"."""
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


def treated(name: str, clean: bool, hot: bool, cool: bool, sliced: bool) -> str:
    """Returns an object with its treatment, e.g. "hot and clean sliced tomato 1"; one that is only cool is "cold"."""
    if cool and not (hot or clean or sliced):
        return f"cold {name}"
    warmth = "hot" if hot else "cool" if cool else ""
    adjectives = " and ".join(word for word in (warmth, "clean" if clean else "") if word)
    return " ".join(word for word in (adjectives, "sliced" if sliced else "", name) if word)
