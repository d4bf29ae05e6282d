"""Stage `report`: labels the run, writes its report, one self-contained page, and closes the ledger.

It only shows a result. Labels and page are made in limited processes, and whatever goes wrong there is logged.
"""

import time

from a2rl.core.errors import InterruptedByUserError
from a2rl.core.event_log import log_failure
from a2rl.core.settings import Settings
from a2rl.labels.records import write_labels
from a2rl.results.manifest import close_run
from a2rl.results.report.page import draw_report
from a2rl.run.directory import RunDir, aside_log
from a2rl.run.events import RunClosed
from a2rl.run.records import GradeRecord, ReportRecord
from a2rl.validity.record import ValidityRecord


def report(run: RunDir, settings: Settings) -> ReportRecord:
    """Writes `records/labels.json`, and `report/index.html` from the ledger and the records; a further call regenerates
    both.

    The first call for a result closes the ledger, with the digests of all files that the run has then.

    Raises:
        UsageError: The result has not been judged, so the run has not ended; labels and page were made all the same.
    """
    started = time.monotonic()
    _show(run, settings)
    if (graded := run.read("grade", GradeRecord)) is not None and graded.is_final:
        run.need("validity", ValidityRecord)
    # The record of a closed run must stay as it is.
    record = run.read("report", ReportRecord) if run.ledger.events(RunClosed) else None
    if record is None:
        record = run.write("report", ReportRecord(seconds=time.monotonic() - started, path=run.report))
    close_run(run)
    return record


def _show(run: RunDir, settings: Settings) -> None:
    for show in (write_labels, draw_report):
        try:
            show(run, settings)
        except InterruptedByUserError:
            raise
        except Exception as error:  # noqa: BLE001 - the run ends without it, and `a2rl report` tries again
            log_failure(aside_log(run), show.__name__, error)
