"""Stage `report`: one self-contained page that shows what happened, and MLflow brought up to date."""

import time

from a2rl.records import ReportRecord
from a2rl.report import write_report
from a2rl.run import RunDir
from a2rl.settings import Settings


def report(run: RunDir, settings: Settings) -> ReportRecord:
    """Writes `report/index.html` from the ledger and the records; calling it again draws it anew."""
    started = time.monotonic()
    write_report(run, settings)
    return run.write("report", ReportRecord(seconds=time.monotonic() - started, path=run.report))
