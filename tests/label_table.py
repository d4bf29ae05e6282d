"""Measures the labels: accuracy and confusion table on the labelled programs, and the recorded agents' transcripts.

    python -m tests.label_table [--run] [--json]

With `--run`, the programs in `running` are run under the tracer (a few minutes); the others are only read.

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

from a2rl.agent_systems.catalog import find_agent
from a2rl.agent_systems.transcripts import read_transcript
from a2rl.labels.commands import code_in_steps
from a2rl.labels.routes import ROUTES, in_words
from a2rl.labels.run_labels import classify
from tests.labels.corpus import HALVES, half
from tests.labels.traced_programs import programs, run_programs

REPOSITORY = Path(__file__).resolve().parent.parent
NONE = "(none)"


class Rated(NamedTuple):
    """A program, its true route and the one that was found."""

    name: str
    truth: str
    found: str


def rate(name: str) -> list[Rated]:
    """Classifies the programs of a half."""
    return [Rated(each.name, each.route, in_words(classify(each.files))) for each in half(name)]


def rate_running() -> dict[str, list[Rated]]:
    """Runs the programs that really train; returns what their traces show, and what their code shows alone."""
    with TemporaryDirectory() as folder:
        traced = [Rated(each.name, each.route, in_words(chain)) for each, chain in run_programs(Path(folder))]
    read = [Rated(each.name, each.route, in_words(classify(each.files))) for each in programs()]
    return {"running, traced": traced, "running, read alone": read}


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


def transcripts() -> list[Rated]:
    """Classifies what the seven recorded agents did: none of them trained anything."""
    folder = REPOSITORY / "tests" / "transcripts"
    rows = []
    for path in sorted(each for each in folder.iterdir() if each.is_dir()):
        transcript = find_agent(path.name, REPOSITORY).transcript
        assert transcript is not None
        files = [each for each in sorted(path.glob("work*.json*")) if ".served" not in each.name]
        steps = read_transcript(transcript.format, *files).steps
        code, commands = code_in_steps(steps)
        rows.append(Rated(path.name, "unknown", in_words(classify(code, commands))))
    return rows


def _print_half(name: str, rated: list[Rated]) -> None:
    right = sum(each.truth == each.found for each in rated)
    sys.stdout.write(
        f"\n{name}: {right} of {len(rated)} programs have the right chain ({100 * right / len(rated):.0f}%)\n"
    )
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
    """Prints the tables."""
    parser = argparse.ArgumentParser(description="Accuracy of the route labels.")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--run", action="store_true", help="also run the programs that really train")
    arguments = parser.parse_args()
    results = {name: rate(name) for name in HALVES} | (rate_running() if arguments.run else {})
    for name, rated in results.items():
        _print_half(name, rated)
    recorded = transcripts()
    sys.stdout.write("\nrecorded transcripts:\n")
    for each in recorded:
        sys.stdout.write(f"  {each.name}: {each.found}\n")
    if arguments.json:
        rows = {name: [each._asdict() for each in rated] for name, rated in results.items()}
        sys.stdout.write(json.dumps(rows | {"transcripts": [each._asdict() for each in recorded]}) + "\n")


if __name__ == "__main__":
    main()
