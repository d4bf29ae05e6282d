"""What the commands print: tables and lines for people, one JSON object on the last line for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

WIDTH_IN_FILES = 160
out = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_IN_FILES)
err = Console(stderr=True, highlight=False)


def print_error(message: str) -> None:
    err.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, gone when it is done; call the function with what is done and what there is in all."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(SpinnerColumn(), *columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def print_json(value: Any) -> None:
    """One line, unstyled and unwrapped."""
    out.file.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)
