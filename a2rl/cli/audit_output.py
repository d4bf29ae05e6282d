"""Shows the checks of `a2rl verify` and `a2rl audit`."""

from collections.abc import Iterable

from rich.text import Text

from a2rl.bundle.audit import Audit
from a2rl.cli.console import out
from a2rl.core.printable import printable, printable_json
from a2rl.grading.regrade import Regrade
from a2rl.results.verify import CheckOutcome

SHOWN = 20
"""The number of items that are listed; `--json` has all of them."""


def show_checks(checks: Iterable[CheckOutcome]) -> None:
    """Prints one line for each check."""
    for check in checks:
        mark, text = _line(check)
        out.print(Text.assemble(mark, check.what, f": {printable(text)}" if text else ""), soft_wrap=True)


def _line(check: CheckOutcome) -> tuple[tuple[str, str], str]:
    if check.problem:
        return ("FAILED ", "bold red"), check.problem
    if check.not_checked:
        return ("-      ", "yellow"), f"not checked: {check.not_checked}"
    return ("ok     ", "green"), check.note


def show_regrade(found: Regrade) -> None:
    """Prints how a second grade compares with the first, and the items that differ."""
    what = f"submission {found.submission}" if found.submission else "the base model"
    if found.is_same:
        text = f"{what} graded anew: {found.after}, the same item by item ({found.after.total} {found.split} items)"
        out.print(Text.assemble(("ok     ", "green"), printable(text)), soft_wrap=True)
        return
    text = f"{what} graded anew: {found.after}, not {found.before}; {len(found.differences)} items differ"
    out.print(Text.assemble(("DIFFERS ", "bold red"), printable(text)), soft_wrap=True)
    for each in found.differences[:SHOWN]:
        out.print(f"        {each.id}: {each.before}, now {each.after}", soft_wrap=True, markup=False)


def show_validity(found: Audit) -> None:
    """Prints the validity of the result, with each finding and its evidence, and what the audit concludes."""
    for what, why in found.not_regraded.items():
        out.print(f"not graded anew: {what}: {why}", style="yellow", soft_wrap=True, markup=False)
    if found.left_out:
        gone = ", ".join(found.left_out[:SHOWN]) + (" ..." if len(found.left_out) > SHOWN else "")
        text = printable(f"not here, so the result is flagged at best: {gone}")
        out.print(text, style="yellow", soft_wrap=True, markup=False)
    if found.validity is not None:
        for finding in found.validity.findings:
            out.print(f"{finding.level}: {finding.text} ({finding.id})", soft_wrap=True, markup=False)
            for each in finding.evidence:
                place = each.model_dump(mode="json", exclude_defaults=True)
                out.print(f"    {printable_json(place)}", soft_wrap=True, markup=False)
    word = found.validity.word if found.validity else "not decided"
    out.print(f"{'sound' if found.sound else 'NOT SOUND'}; validity: {word}", style="bold", soft_wrap=True)
