"""The agent's work as a trace: a tree of spans with their real times, for MLflow.

The root is the agent's whole work. Below it are its steps with their tool calls (`trajectory.json`), its requests to
the LLM (`logs/llm.jsonl`) and its submissions (the ledger). A transcript has one time for each step, the moment when
the LLM had answered; its calls are taken to last until the next request begins. All texts are cut. The id of a trace
follows from the run's, so writing it again replaces it.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from a2rl.agent_systems.transcripts.atif import Step, Trajectory
from a2rl.core.errors import A2rlError
from a2rl.core.files import read_model
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.llm.relay.request_log import Request, RequestLogReader, request_log_path
from a2rl.results.mlflow.store import MlflowStore, short_text
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, Graded, SubmissionAccepted, SubmissionRefused
from a2rl.run.ledger import Entry

if TYPE_CHECKING:
    from mlflow.entities import Span

MAX_FILE_BYTES = 16 << 20
"""A larger trajectory is not read: it would take more than a quarter of a GiB in the process of the pipeline."""
MAX_SPANS = 1_000
"""Steps in a trace, and the same of requests: the first and the last ones."""
MAX_CHARS = 4_000
MAX_VALUES = 50
"""Arguments of a call, and calls of a step."""

SpanKind = Literal["AGENT", "CHAIN", "LLM", "TOOL", "EVALUATOR"]
SPANS_PER_REQUEST = 400


class SpanData(NamedTuple):
    """One span."""

    key: str
    """Its name within the trace, such as `step 3`."""
    parent: str
    """The key of the span around it; empty for the root."""
    title: str
    kind: SpanKind
    start: float
    """Unix time in seconds, like `end`."""
    end: float
    inputs: Any = None
    outputs: Any = None
    tokens: tuple[int, int] | None = None
    """Of the prompt and of the answer."""
    model: str = ""
    problem: str = ""
    """Why it failed; empty if it did not."""


def trace_of(run: RunDir, entries: Sequence[Entry]) -> list[SpanData]:
    """Returns the spans of a run, the root first; none if its agent was never started."""
    starts = [entry.at for entry in entries if isinstance(entry.event, AgentStarted)]
    ends = [entry for entry in entries if isinstance(entry.event, AgentEnded)]
    if not starts:
        return []
    begun, ended = starts[0], ends[-1].at if ends else entries[-1].at
    submissions = list(_submissions(entries))
    requests = _requests(run)
    steps = _steps(run)
    work = [*_request_spans(requests, has_steps=bool(steps)), *_step_spans(steps, requests, ended), *submissions]
    last = max([ended, *(each.end for each in submissions)])
    why = ends[-1].event if ends else None
    outputs = {"ended": why.reason} if isinstance(why, AgentEnded) else {}
    if isinstance(why, AgentEnded) and why.why:
        outputs["why"] = _text(why.why)
    asked = {"task": run.spec.task, "agent": _text(run.spec.agent), "driver": _text(run.spec.driver or ""),
             "mode": run.spec.mode, "budget_s": run.spec.budget_s}  # fmt: skip
    root = SpanData("run", "", f"{_text(run.spec.agent)} on {run.spec.task}", "AGENT", begun, last, asked, outputs)
    return [root, *(_within(each, begun, last) for each in work)]


def _within(span: SpanData, first: float, last: float) -> SpanData:
    """Keeps a span inside the root: the times of transcripts are what an agent wrote."""
    start = min(max(span.start, first), last)
    return span._replace(start=start, end=min(max(span.end, start), last))


def _submissions(entries: Sequence[Entry]) -> Iterator[SpanData]:
    grades = {each.event.weights_digest: each for each in entries if isinstance(each.event, Graded)}
    for entry in entries:
        event = entry.event
        if isinstance(event, SubmissionRefused):
            yield SpanData(
                f"refusal {entry.seq}", "run", "submission refused", "EVALUATOR", entry.at, entry.at,
                {"model_path": _text(event.model_path)}, None, problem=_text(event.reason),
            )  # fmt: skip
        elif isinstance(event, SubmissionAccepted):
            grade = grades.get(event.weights_digest)
            graded = grade.event if grade is not None else None
            outputs = None
            if isinstance(graded, Graded):
                outputs = {"score": graded.result.score, "improvement": graded.improvement}
            name = f"submission {event.submission_id}"
            inputs = {"model_path": _text(event.model_path), "weights_digest": event.weights_digest}
            yield SpanData(name, "run", name, "EVALUATOR", entry.at, grade.at if grade else entry.at, inputs, outputs)


def _requests(run: RunDir) -> list[Request]:
    return _first_and_last(list(RequestLogReader(request_log_path(run)).requests()))


def _request_spans(requests: Sequence[Request], *, has_steps: bool) -> Iterator[SpanData]:
    for number, each in enumerate(requests, 1):
        problem = each.refused or ("" if each.status < 400 else f"status {each.status}")
        yield SpanData(
            f"request {number}", "run", f"LLM: {_text(each.answered or each.asked or each.path)[:60]}", "LLM",
            each.t - each.seconds, each.t, {"model": _text(each.asked), "path": _text(each.path)},
            {"status": each.status} | ({"see": "the step that follows"} if has_steps else {}),
            (each.prompt_tokens, each.completion_tokens), _text(each.answered or each.asked), _text(problem),
        )  # fmt: skip


def _steps(run: RunDir) -> list[Step]:
    try:
        if run.trajectory.stat().st_size > MAX_FILE_BYTES:
            return []
        return _first_and_last(read_model(run.trajectory, Trajectory).steps)
    except (A2rlError, OSError):  # agents without a transcript have none
        return []


def _step_spans(steps: Sequence[Step], requests: Sequence[Request], ended: float) -> Iterator[SpanData]:
    begins = sorted(each.t - each.seconds for each in requests)
    times = [step.at for step in steps]
    now = 0.0
    for place, step in enumerate(steps):
        known = times[place]
        now = known if known is not None else now
        until = next((each for each in times[place + 1 :] if each is not None), ended)
        after = bisect_right(begins, now)
        end = min(until, begins[after]) if after < len(begins) else until
        acts = step.source == "agent" and known is not None
        yield from _spans_of_step(step, now, max(end, now) if acts else now, counts_tokens=not requests)


def _spans_of_step(step: Step, start: float, end: float, *, counts_tokens: bool) -> Iterator[SpanData]:
    key, calls = f"step {step.step_id}", (step.tool_calls or ())[:MAX_VALUES]
    texts = {"message": _text(step.message)} | (
        {"reasoning": _text(step.reasoning_content)} if step.reasoning_content else {}
    )
    used = step.metrics if counts_tokens else None
    tokens = (used.prompt_tokens or 0, used.completion_tokens or 0) if used else None
    names = ", ".join(dict.fromkeys(_text(call.function_name)[:40] for call in calls))
    title = f"{key}: {names or step.source}"[:100]
    yield SpanData(
        key, "run", title, "CHAIN", start, end, None, texts, tokens, _text(step.model_name or "") if tokens else ""
    )
    results: dict[str | None, list[str]] = {}
    for result in step.observation.results if step.observation else ():
        results.setdefault(result.source_call_id, []).append(result.content or "")
    for number, call in enumerate(calls, 1):
        arguments = {_text(name)[:100]: _value(value) for name, value in list(call.arguments.items())[:MAX_VALUES]}
        output = _text("\n".join(results.get(call.tool_call_id, [])))
        yield SpanData(
            f"{key}, call {number}", key, _text(call.function_name)[:60], "TOOL", start, end, arguments, output
        )


def _first_and_last(found: Sequence[Any]) -> list[Any]:
    half = MAX_SPANS // 2
    return list(found) if len(found) <= MAX_SPANS else [*found[:half], *found[-half:]]


def _value(value: Any) -> Any:
    return value if isinstance(value, bool | int | float) or value is None else _text(str(value))


def _text(text: str) -> str:
    """Returns a text for the trace: printable, without secrets, and not too long."""
    return printable(scrub(text), MAX_CHARS, lines=True)


def trace_id_of(name: str) -> str:
    """Returns the id of the trace of a run."""
    return "tr-" + _hex(name, 32)


def log_trace(store: MlflowStore, suite: str, run_id: str, name: str, spans: Sequence[SpanData]) -> None:
    """Writes a trace and links it to an MLflow run. Two requests, and one more for each further 400 spans.

    Args:
        suite: The suite of the run, whose experiment gets the trace.
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
