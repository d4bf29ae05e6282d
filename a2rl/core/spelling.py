r"""How a text is spelled: what all texts have in common that a reader or a search engine takes for the same.

    spelled("\uff33\u00e9a\u200bt of Bal\u00adco")      # "Seat of Balco"

Whatever looks for one text in another one that an agent or a stranger wrote compares both in this form.
"""

import unicodedata

FILLERS = "\u115f\u1160"
"""Letters that nobody sees; the other two are spelled with these."""


class _Kept(dict[int, int | None]):
    """What stays of a character: itself or nothing. Filled on first use."""

    def __missing__(self, code: int) -> int | None:
        char = chr(code)
        is_seen = char.isspace() or not (unicodedata.category(char)[0] in "CM" or char in FILLERS)
        return self.setdefault(code, code if is_seen else None)


_KEPT = _Kept()


def spelled(text: str) -> str:
    """Returns a text without characters that nobody sees and marks on letters, in letters of the usual width and form.

    Capital letters, spaces and punctuation stay.
    """
    return unicodedata.normalize("NFKD", text).translate(_KEPT)
