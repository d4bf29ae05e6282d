"""Stage `report`: writes the run's report, one self-contained page."""

import time

from a2rl.core.settings import Settings
from a2rl.results.report import write_report
from a2rl.run.directory import RunDir
from a2rl.run.records import ReportRecord


def report(run: RunDir, settings: Settings) -> ReportRecord:
    """Writes `report/index.html` from the ledger and the records; a further call regenerates it."""
    started = time.monotonic()
    write_report(run, settings)
    return run.write("report", ReportRecord(seconds=time.monotonic() - started, path=run.report))
