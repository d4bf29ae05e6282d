"""Stage `report`: labels the run, and writes its report, one self-contained page."""

import time

from a2rl.core.settings import Settings
from a2rl.labels.labelling import write_labels
from a2rl.results.report import write_report
from a2rl.run.directory import RunDir
from a2rl.run.records import ReportRecord


def report(run: RunDir, settings: Settings) -> ReportRecord:
    """Writes `records/labels.json`, and `report/index.html` from the ledger and the records; a further call regenerates
    both."""
    started = time.monotonic()
    write_labels(run, settings)
    write_report(run, settings)
    return run.write("report", ReportRecord(seconds=time.monotonic() - started, path=run.report))
