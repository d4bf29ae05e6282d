"""The command line of the benchmark; see the package."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console

import tests.bench
from a2rl.core.settings import Settings
from tests.bench.measured import Row

ON_REQUEST = {"real-model", "training-choices", "training-speed"}
"""Measurements that take long, or download something: only made when they are named."""


def measurements() -> dict[str, Callable[[Settings, Path], Iterable[Row]]]:
    """Returns the measurements by name, in the order in which they are made."""
    from tests.bench import decoding, grading, machine, records, submissions, tasks, training

    return {
        "workers": grading.workers,
        "kept-engine": grading.kept_engine,
        "shared-prefix": decoding.shared_prefix,
        "code-answers": grading.code_answers,
        "submission-checks": submissions.submission_checks,
        "alfworld": tasks.alfworld,
        "sandbox": machine.isolation,
        "tracer": machine.tracer,
        "recorder": records.recorder,
        "provenance": records.provenance,
        "text-search": records.text_search,
        "suite-report": records.suite_report,
        "real-model": decoding.real_model,
        "training-speed": training.training_speed,
        "training-choices": training.training_choices,
    }


def main() -> None:
    """Measures, and prints each figure as soon as it is known."""
    settings = Settings.load()
    sys.path.insert(0, str(settings.root))
    known = measurements()
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=tests.bench.__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=_names(known))
    parser.add_argument("--json", action="store_true", help="print a list of rows on the last line")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - known.keys():
        parser.error(f"there is no measurement {min(unknown)}; choose from {', '.join(known)}")
    out, err, rows = Console(), Console(stderr=True), list[Row]()
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.names or [name for name in known if name not in ON_REQUEST]:
            folder = Path(scratch, name)
            folder.mkdir()
            with err.status(f"measuring: {name}") as status:
                for row in known[name](settings, folder):
                    status.stop()  # so that the row does not land in the middle of the status line
                    out.print(f"{row.measured}: [bold]{row.figure}[/]", soft_wrap=True)
                    status.start()
                    rows.append(row)
    if arguments.json:
        sys.stdout.write(json.dumps([row._asdict() for row in rows]) + "\n")


def _names(known: Iterable[str]) -> str:
    always = ", ".join(name for name in known if name not in ON_REQUEST)
    return f"what to measure: {always}; and only if it is named: {', '.join(sorted(ON_REQUEST))}"


if __name__ == "__main__":
    main()
