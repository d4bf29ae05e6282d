"""Writes the trace of a run to MLflow. Its id follows from the run's, so writing it again replaces it."""

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from a2rl.results.mlflow.store import MlflowStore, short_text
from a2rl.results.mlflow.trace import SpanData

if TYPE_CHECKING:
    from mlflow.entities import Span

SPANS_PER_REQUEST = 400


def trace_id_of(name: str) -> str:
    """Returns the id of the trace of a run."""
    return "tr-" + _hex(name, 32)


def log_trace(store: MlflowStore, suite: str, run_id: str, name: str, spans: Sequence[SpanData]) -> None:
    """Writes a trace and links it to an MLflow run. Two requests, and one more for each further 400 spans.

    Args:
        store: The connected store.
        suite: The suite of the run, whose experiment gets the trace.
        run_id: The MLflow run.
        name: The run's own id, which is the session of the trace.
        spans: The spans, the root first.
    """
    from mlflow.entities import Span, TraceInfo, TraceLocation, TraceState
    from mlflow.tracing.client import TracingClient

    root, experiment = spans[0], store.experiment(suite)
    client = TracingClient(store.uri)
    info = TraceInfo(
        trace_id=trace_id_of(name),
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=int(root.start * 1000),
        execution_duration=int((root.end - root.start) * 1000),
        state=TraceState.OK,
        request_preview=short_text(json.dumps(root.inputs)),
        response_preview=short_text(json.dumps(root.outputs)),
        trace_metadata={"mlflow.sourceRun": run_id, "mlflow.trace.session": name, "mlflow.traceInputs": "{}"},
        tags={"mlflow.traceName": short_text(root.title)},
    )
    client.start_trace(info)
    made = [Span.from_dict(_span(each, name)) for each in spans]
    for first in range(0, len(made), SPANS_PER_REQUEST):
        _log(client, experiment, made[first : first + SPANS_PER_REQUEST])


def _log(client: Any, experiment: str, spans: "list[Span]") -> None:
    try:
        client.log_spans(experiment, spans)
    except NotImplementedError:
        return  # a server from before MLflow 3.4 keeps no spans


def _span(span: SpanData, name: str) -> dict[str, Any]:
    """Returns a span in the form that MLflow reads."""
    attributes: dict[str, Any] = {"mlflow.traceRequestId": trace_id_of(name), "mlflow.spanType": span.kind}
    if span.inputs is not None:
        attributes["mlflow.spanInputs"] = span.inputs
    if span.outputs is not None:
        attributes["mlflow.spanOutputs"] = span.outputs
    if span.model:
        attributes["mlflow.llm.model"] = span.model
    if span.tokens is not None:
        prompt, answer = span.tokens
        tokens = {"input_tokens": prompt, "output_tokens": answer, "total_tokens": prompt + answer}
        attributes["mlflow.chat.tokenUsage"] = tokens
    start = int(span.start * 1e9)
    return {
        "trace_id": trace_id_of(name),
        "span_id": _hex(f"{name} {span.key}", 16),
        "parent_span_id": _hex(f"{name} {span.parent}", 16) if span.parent else None,
        "name": span.title,
        "start_time_unix_nano": start,
        "end_time_unix_nano": max(start, int(span.end * 1e9)),
        "status": {"code": "STATUS_CODE_ERROR" if span.problem else "STATUS_CODE_OK", "message": span.problem},
        "attributes": {key: json.dumps(value) for key, value in attributes.items()},
        "events": [],
    }


def _hex(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
