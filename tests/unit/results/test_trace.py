"""Tests the trace of an agent's work: real times, whatever a transcript claims, and its texts as text."""

from datetime import UTC, datetime

from a2rl.agent_systems.transcripts.atif import Agent, Observation, ObservationResult, Step, ToolCall, Trajectory
from a2rl.core.files import write_atomically
from a2rl.core.settings import Settings
from a2rl.results.mlflow.trace import SpanData, trace_of
from a2rl.run.directory import RunDir
from tests.simulated_runs import simulate_run
from tests.written_ledger import BEGAN_AT

HOSTILE = "rm\x1b[2J\u202e"


def step(number: int, at: float, call: str) -> Step:
    return Step(
        step_id=number, source="agent", message="I try this", timestamp=datetime.fromtimestamp(at, UTC).isoformat(),
        tool_calls=(ToolCall(tool_call_id="c", function_name=call, arguments={"command": HOSTILE}),),
        observation=Observation(results=(ObservationResult(source_call_id="c", content=HOSTILE),)),
    )  # fmt: skip


def spans_of(run: RunDir, *steps: Step) -> dict[str, SpanData]:
    whole = Trajectory(agent=Agent(name="a", version="1"), steps=steps)
    write_atomically(run.trajectory, whole.to_json())
    return {span.key: span for span in trace_of(run, run.ledger.entries())}


def test_a_step_lasts_until_the_next_request_begins(settings: Settings) -> None:
    run = simulate_run(settings, 1)
    (run.logs / "llm.jsonl").write_text(
        f'{{"t": {BEGAN_AT + 7}, "path": "/", "status": 200, "seconds": 2, "prompt_tokens": 5}}\n'
    )
    spans = spans_of(run, step(1, BEGAN_AT + 3, "Bash"), step(2, BEGAN_AT + 7, "Bash"))
    assert (spans["step 1"].start, spans["step 1"].end) == (BEGAN_AT + 3, BEGAN_AT + 5)
    assert (spans["request 1"].start, spans["request 1"].end) == (BEGAN_AT + 5, BEGAN_AT + 7)
    assert spans["request 1"].tokens == (5, 0)
    assert spans["step 1, call 1"].parent == "step 1"


def test_a_submission_lasts_as_long_as_its_grading(settings: Settings) -> None:
    spans = spans_of(simulate_run(settings, 1), step(1, BEGAN_AT + 3, "Bash"))
    assert spans["submission 1"].end - spans["submission 1"].start == 1.0
    assert spans["submission 1"].outputs["score"] is not None


def test_no_span_leaves_the_agents_time_despite_its_transcript(settings: Settings) -> None:
    spans = spans_of(simulate_run(settings, 1), step(1, 5.0, "Bash"), step(2, BEGAN_AT * 2, "Bash"))
    root = spans["run"]
    assert all(root.start <= each.start <= each.end <= root.end for each in spans.values())


def test_control_characters_are_shown_as_text(settings: Settings) -> None:
    spans = spans_of(simulate_run(settings, 1), step(1, BEGAN_AT + 3, HOSTILE))
    told = repr(spans["step 1, call 1"])
    assert "\\\\x1b" in told
    assert "\\x1b[2J" not in told.replace("\\\\x1b", "")


def test_a_run_whose_agent_never_started_has_no_trace(settings: Settings) -> None:
    run = simulate_run(settings, 1)
    run.ledger.path.unlink()
    assert trace_of(run, run.ledger.entries()) == []
