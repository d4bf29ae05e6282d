"""A table of results, made once and shown by a page, in Markdown and on a terminal.

Cells are texts of anybody, and each renderer makes them harmless in its own way. The templates of pages show what is
printable, without secrets, and escaped as HTML; in Markdown, nothing is markup; a2rl/cli/console.py prints likewise.
Should a text of an agent become part of a page all the same, the page's policy keeps a browser from running or loading
it: only the scripts of the template run.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template, select_autoescape
from markupsafe import Markup

from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
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


MAX_TEXT = 300
"""Characters of one text of the agent."""
SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&:@-])")
"""What Markdown, tables, HTML or a site that shows it could take for markup, links or mentions."""


def plain(text: str) -> str:
    """Returns a text in one line in which nothing is markup."""
    return SPECIAL.sub(r"\\\1", printable(scrub(text), MAX_TEXT))


def table_lines(table: Table) -> Iterator[str]:
    """Yields the lines of a table, in which nothing is markup."""
    yield _row(table.columns)
    yield f"|{'|'.join('---:' if column in table.right else '---' for column in table.columns)}|"
    yield from (_row(cell.text for cell in row) for row in table.rows)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(plain, cells))} |"


SHARED = "a2rl.results.report"
"""The package with what all pages include, such as their style."""


def load_template(package: str) -> Template:
    """Returns the `page.html` of a package."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader(SHARED, ".")]),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_visible,
    )
    assert environment.loader is not None
    source, *_ = environment.loader.get_source(environment, "page.html")
    scripts = re.findall("<script>(.*?)</script>", source, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in digests)
    environment.globals["policy"] = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
    return environment.get_template("page.html")


def _visible(value: object) -> object:
    """Returns a printable form of a value, which is then escaped as HTML. Markup is that of a template itself."""
    return value if isinstance(value, int | float | Markup) else printable(scrub(str(value)), lines=True)
