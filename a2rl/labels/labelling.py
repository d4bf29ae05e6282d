"""Labels a run in a separate process, and writes `records/labels.json`."""

from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import log_failure
from a2rl.core.processes import read_apart
from a2rl.core.settings import Settings
from a2rl.labels.records import VERSION, LabelsRecord, labels_of
from a2rl.labels.routes import UNKNOWN
from a2rl.run.directory import RunDir, pipeline_log

TIMEOUT_S, MAX_CPU_S = 100.0, 12
MAX_MEMORY_BYTES = 900 << 20


def write_labels(run: RunDir, settings: Settings) -> LabelsRecord:
    """Computes the labels and writes the record. It never fails: a run that cannot be labelled has the label unknown.

    A second rating that an earlier record has is kept.
    """
    record = _computed(run, settings)
    known = labels_of(run)
    if known is not None and known.second is not None:
        record = record.model_copy(update={"second": known.second})
    return run.write("labels", record)


def _computed(run: RunDir, settings: Settings) -> LabelsRecord:
    try:
        read = read_apart("a2rl.labels", [str(run.root)], settings, "", TIMEOUT_S, MAX_MEMORY_BYTES, MAX_CPU_S)
        if read.problem:
            raise InfrastructureError(read.problem)
        return LabelsRecord.model_validate_json(read.output)
    except (OSError, ValueError, InfrastructureError) as error:
        log_failure(pipeline_log(run), "the run could not be labelled", error)
        return LabelsRecord(
            seconds=0, chain=(UNKNOWN,), training_type="unknown", version=VERSION, reason=str(error)[:500]
        )
