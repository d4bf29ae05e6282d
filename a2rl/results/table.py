"""A table of results, made once and shown by a page, in Markdown and on a terminal.

Cells are texts of anybody, and each renderer makes them harmless in its own way: the page escapes them
(a2rl/results/report/template.py), Markdown (a2rl/results/report/markdown.py) and the terminal (a2rl/cli/console.py)
likewise.
"""

from typing import NamedTuple

from a2rl.scoring.means import Interval

NOTHING = "-"


class Cell(NamedTuple):
    """One cell."""

    text: str = ""
    order: float | None = None
    """What it is sorted by, if not by its text."""
    link: str = ""
    title: str = ""
    """What a page adds when a mouse points to it."""
    look: str = ""
    """Its CSS class on a page."""


class Table(NamedTuple):
    """One table."""

    name: str
    """Its id on a page."""
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: tuple[str, ...] = ()
    """Columns that are aligned to the right."""
    filters: tuple[tuple[str, str], ...] | None = None
    """Columns by whose texts a page can filter the rows, with the text that is chosen at first (empty: all). None: the
    page neither filters nor sorts."""

    def choices(self, column: str) -> list[str]:
        """Returns the different texts of a column, in order."""
        place = self.columns.index(column)
        return sorted({row[place].text for row in self.rows})


def points(value: float | None, sign: str = "") -> str:
    """Returns a score or a gain as text."""
    return NOTHING if value is None else f"{value:{sign}.1f}"


def interval(value: Interval | None, sign: str = "") -> str:
    """Returns an interval as text."""
    return NOTHING if value is None else f"{value.low:{sign}.1f} to {value.high:{sign}.1f}"


def dollars(value: float | None) -> str:
    """Returns a sum of money as text."""
    return NOTHING if value is None else f"${value:.2f}"
