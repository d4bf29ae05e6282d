"""Shows the checks of `a2rl verify` and `a2rl audit`."""

from collections.abc import Iterable

from rich.text import Text

from a2rl.cli.console import out
from a2rl.core.printable import printable
from a2rl.results.verify import Check


def show_checks(checks: Iterable[Check]) -> None:
    """Prints one line for each check."""
    for check in checks:
        mark, text = _line(check)
        out.print(Text.assemble(mark, check.what, f": {printable(text)}" if text else ""), soft_wrap=True)


def _line(check: Check) -> tuple[tuple[str, str], str]:
    if check.problem:
        return ("FAILED ", "bold red"), check.problem
    if check.not_checked:
        return ("-      ", "yellow"), f"not checked: {check.not_checked}"
    return ("ok     ", "green"), check.note
