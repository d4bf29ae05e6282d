"""Stage `report`: labels the run, writes its report, one self-contained page, and closes the ledger."""

import time

from a2rl.core.settings import Settings
from a2rl.labels.labelling import write_labels
from a2rl.results.manifest import close_run
from a2rl.results.report import write_report
from a2rl.run.directory import RunDir
from a2rl.run.events import RunClosed
from a2rl.run.records import ReportRecord


def report(run: RunDir, settings: Settings) -> ReportRecord:
    """Writes `records/labels.json`, and `report/index.html` from the ledger and the records; a further call regenerates
    both.

    The first call for a result closes the ledger, with the digests of all files that the run has then.
    """
    started = time.monotonic()
    write_labels(run, settings)
    write_report(run, settings)
    if (record := _unless_closed(run)) is None:
        record = run.write("report", ReportRecord(seconds=time.monotonic() - started, path=run.report))
    close_run(run)
    return record


def _unless_closed(run: RunDir) -> ReportRecord | None:
    """Returns the record of a run that is closed, which must stay as it is."""
    return run.read("report", ReportRecord) if run.ledger.events(RunClosed) else None
