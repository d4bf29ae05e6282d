"""Output of the commands: tables and lines for people, JSON on the last line for programs.

Texts are shown as they are, without markup, emoji codes or control characters (a2rl/core/printable.py).
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment, SegmentLines
from rich.table import Table
from rich.text import Text

from a2rl.core.printable import printable, printable_json

WIDTH_IN_FILES = 160
MAX_WIDTH = 10_000
PROSE_CHARS = 30
"""A longer text of several words is wrapped in a table."""


class PlainConsole(Console):
    """A console that prints untrusted texts safely."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Renders a string, also in a table, without markup and with the width that it will have on screen."""
        shown = Text(printable(text, lines=True), style=options.get("style", ""))
        shown.justify, shown.overflow = options.get("justify"), options.get("overflow")
        return shown

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Renders anything else. The console's own cursor movements are control segments; all others are text."""
        for segment in super().render(renderable, options):
            yield (
                segment if segment.control else segment._replace(text=printable(segment.text, sys.maxsize, lines=True))
            )


out = PlainConsole(highlight=False, width=None if sys.stdout.isatty() else WIDTH_IN_FILES)
err = PlainConsole(stderr=True, highlight=False)


def say(text: str | Text, style: str = "") -> None:
    """Prints a text as it is, without wrapping it."""
    out.print(text, style=style, soft_wrap=True)


def say_aside(text: str | Text, style: str = "") -> None:
    """Prints a text on stderr, as it is, without wrapping it."""
    err.print(text, style=style, soft_wrap=True)


def print_error(message: str) -> None:
    """Prints a message on stderr, marked as an error."""
    err.print(Text.assemble(("error: ", "bold red"), printable(message)), soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints a JSON value on one line, without styles and line breaks."""
    out.file.write(printable_json(value) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Prints a table; the columns named in `right` are aligned to the right.

    Only columns with long texts are wrapped, so that names, such as run ids, can be copied, and numbers can be read. A
    table that is still too wide runs over the edge of the terminal. In a file, each row is one line.
    """
    rows = list(rows)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        longest = max((cell_len(row[place]) for row in rows if " " in row[place]), default=0)
        is_prose = longest > PROSE_CHARS
        table.add_column(
            column,
            justify="right" if column in right else "left",
            overflow="fold",
            no_wrap=not is_prose,
            min_width=PROSE_CHARS - 10
            if is_prose
            else max([cell_len(column), *(cell_len(row[place]) for row in rows)]),
        )
    for row in rows:
        table.add_row(*row)
    unlimited = out.options.update(width=MAX_WIDTH)
    narrowest, natural = out.measure(table, options=unlimited)
    width = max(narrowest, min(natural, out.width)) if out.is_terminal else natural
    lines = out.render_lines(table, unlimited.update(width=width), pad=False)
    out.print(SegmentLines(lines, new_lines=True), crop=False, soft_wrap=True, end="")
