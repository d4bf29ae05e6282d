"""What the commands print: tables and lines for people, one JSON object on the last line for programs.

Texts are shown as they are: no markup, no emoji codes, and nothing that a terminal would obey (a2rl/printable.py).
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from a2rl.printable import printable, printable_json

WIDTH_IN_FILES = 160


class PlainConsole(Console):
    """A console on which a text can do nothing but be read, wherever it comes from."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Strings, in tables as well: no markup, and measured as they will be seen."""
        shown = Text(printable(text, lines=True), style=options.get("style", ""))
        shown.justify, shown.overflow = options.get("justify"), options.get("overflow")
        return shown

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """All else: the console's own movements are control segments, what remains is text."""
        for segment in super().render(renderable, options):
            yield (
                segment if segment.control else segment._replace(text=printable(segment.text, sys.maxsize, lines=True))
            )


out = PlainConsole(highlight=False, width=None if sys.stdout.isatty() else WIDTH_IN_FILES)
err = PlainConsole(stderr=True, highlight=False)


def print_error(message: str) -> None:
    err.print(Text.assemble(("error: ", "bold red"), printable(message)), soft_wrap=True)


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, gone when it is done; call the function with what is done and what there is in all."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(SpinnerColumn(), *columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def print_json(value: Any) -> None:
    """One line, unstyled and unwrapped."""
    out.file.write(printable_json(value) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)
