"""Measures the labels: accuracy and confusion table on the labelled programs, which are run under the tracer.

    python -m tests.label_table [--json]      # a few minutes

By now, all of these programs were used while the rules were written. A step of a chain counts as one label, by its
place: `SFT > GRPO` that is taken for `GRPO` is one step that is missing and one that is right.
"""

import argparse
import json
import sys
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from a2rl.labels.records import ROUTES, in_words
from tests.labels.traced_programs import run_programs

NONE = "(none)"


class Rated(NamedTuple):
    """A program, its true route and the one that was found."""

    name: str
    truth: str
    found: str


def confusion(rated: list[Rated]) -> Counter[tuple[str, str]]:
    """Counts pairs of true and found labels, step by step."""
    pairs: Counter[tuple[str, str]] = Counter()
    for each in rated:
        truth, found = each.truth.split(" > "), each.found.split(" > ")
        for tag, a, b, c, d in SequenceMatcher(None, truth, found, autojunk=False).get_opcodes():
            steps = max(b - a, d - c)
            left, right = truth[a:b] + [NONE] * (steps - b + a), found[c:d] + [NONE] * (steps - d + c)
            assert tag != "equal" or left == right
            pairs.update(zip(left, right, strict=True))
    return pairs


def _print(rated: list[Rated]) -> None:
    right = sum(each.truth == each.found for each in rated)
    sys.stdout.write(f"{right} of {len(rated)} programs have the right chain ({100 * right / len(rated):.0f}%)\n")
    for each in rated:
        if each.truth != each.found:
            sys.stdout.write(f"  {each.name}: {each.truth}, taken for {each.found}\n")
    pairs = confusion(rated)
    columns = [label for label in (*ROUTES, NONE) if any(label in pair for pair in pairs)]
    width = max(map(len, columns)) + 2
    sys.stdout.write("\ntrue \\ found".ljust(width) + "".join(each.rjust(width) for each in columns) + "\n")
    for truth in columns:
        counts = "".join((str(pairs[truth, found]) if pairs[truth, found] else ".").rjust(width) for found in columns)
        sys.stdout.write(truth.ljust(width) + counts + "\n")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Accuracy of the route labels.")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    as_json = parser.parse_args().json
    with TemporaryDirectory() as folder:
        rated = [Rated(each.name, each.route, in_words(chain)) for each, chain in run_programs(Path(folder))]
    _print(rated)
    if as_json:
        sys.stdout.write(json.dumps([each._asdict() for each in rated]) + "\n")


if __name__ == "__main__":
    main()
