"""A run as a log of Inspect: the format of inspect_ai 0.3.285, version 2, which Inspect View and Inspect Scout read.

    write_inspect_log(run, Path("2026-04-12T09-30-15_gsm8k_RUN.json"))

The first sample, `agent`, has the steps of the agent's transcript. Each other one is an item of a grade, with the
prompts, the answers, and the scores of the submission and of the base model. The log has the items that are asked
about, which are hidden from agents, but no gold answers, which stay with the grader. What models and agents wrote may
be hostile: the log asks the viewer to show it as plain text.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from a2rl.agent_systems.transcripts.atif import Step, Trajectory
from a2rl.core.files import read_model, write_atomically
from a2rl.grading.job import GradeResult
from a2rl.grading.outputs import Turn
from a2rl.grading.regrade import choose_grade
from a2rl.results.outputs import GradedOutput, outputs_of
from a2rl.run.directory import RunDir
from a2rl.run.records import BaselineRecord, ExecuteRecord, GradeRecord
from a2rl.scoring.score import ItemResult, TaskScore, Verdict
from a2rl.task_api.contract import Split
from a2rl.validity.record import read_validity

AGENT, SUBMISSION, BASE_MODEL = "agent", "submission", "base model"
"""The id of the agent's sample, and the names of the scores."""
SAMPLES_VIEW = {
    "name": "items",
    "columns": [{"id": name, "visible": False} for name in ("target", "duration")],
    "score_color_scales": {name: {"palette": "good-high", "min": 0, "max": 1} for name in (SUBMISSION, BASE_MODEL)},
}
"""How the samples are listed: without the columns for gold answers and for times of single items, which are empty."""
HALVES: dict[Split, str] = {"public": "public half", "private": "private half", "all": "all items"}


def inspect_log_name(run: RunDir, number: int | None) -> str:
    """Returns a file name by which Inspect View recognises the log of a submission in a folder; None: of the result."""
    return f"{_created(run):%Y-%m-%dT%H-%M-%S}_{run.spec.task}_{_log_id(run, number)}.json"


def _log_id(run: RunDir, number: int | None) -> str:
    return run.id if number is None else f"{run.id}-submission-{number}"


def write_inspect_log(run: RunDir, target: Path, number: int | None = None) -> int:
    """Writes the log of a run and returns the number of its samples.

    Args:
        number: The number of a submission, on the items whose score its agent was told; None: the submission that
            counts, on the items that decided the result.

    Raises:
        UsageError: There is no such grade, or its outputs were not kept.
        IntegrityError: A file of the run is damaged.
        InfrastructureError: The file cannot be written.
    """
    chosen, split = choose_grade(run, number)
    score = read_model(run.items(chosen.weights_digest, split), GradeResult).score
    base = {item.id: item for item in read_model(run.baseline_items, GradeResult).items}
    outputs = enumerate(outputs_of(run, number), 1)
    samples = [*_agent_samples(run), *(_item_sample(each, base.get(each.item), place) for place, each in outputs)]
    before = run.need("baseline", BaselineRecord)
    scores = {SUBMISSION: score, BASE_MODEL: before.total if split == "all" else getattr(before, split)}
    entries = run.ledger.entries()
    log = {
        "version": 2,
        "status": "success",
        "eval": _eval(run, _log_id(run, number), chosen.submission_id, split, score.total),
        "plan": {"steps": [{"solver": _solver(run)}]},
        "stats": {"started_at": _time(entries[0].at), "completed_at": _time(entries[-1].at)},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [_eval_score(name, each) for name, each in scores.items()],
        },
        "samples": samples,
    }
    write_atomically(target, json.dumps(log))  # in ASCII, so that a lone surrogate breaks no reader
    return len(samples)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _created(run: RunDir) -> datetime:
    return datetime.fromisoformat(run.spec.created_at)


def _solver(run: RunDir) -> str:
    return " · ".join(filter(None, (run.spec.agent, run.spec.driver)))


def _eval(run: RunDir, log_id: str, submission: int, split: Split, items: int) -> dict[str, Any]:
    spec, graded, validity = run.spec, run.read("grade", GradeRecord), read_validity(run)
    result: dict[str, Any] = {}
    if graded is not None:
        ci = graded.improvement_ci
        result = {"improvement": graded.improvement, "improvement_ci": list(ci) if ci else None}
        result |= {"verdict": graded.verdict, "counted_submission": graded.submission_id}
    if validity is not None:
        result |= {"validity": validity.word, "findings": list(validity.why)}
    asked = {"agent": spec.agent, "driver": spec.driver, "mode": spec.mode, "budget_s": spec.budget_s}
    return {
        "eval_id": log_id,
        "run_id": run.id,
        "created": _created(run).isoformat(),
        "task": f"{spec.task} ({spec.variant}), {HALVES[split]}",
        "task_id": log_id,
        "dataset": {"name": spec.task, "samples": items},
        "model": f"{spec.model}, submission {submission}",
        "solver": _solver(run),
        "config": {},
        "tags": [spec.suite],
        "metadata": asked | {"seed": spec.seed, "protocol": spec.protocol, "graded": HALVES[split]} | result,
        "viewer": {"trust_content": False, "task_samples_view": SAMPLES_VIEW},
    }


def _eval_score(name: str, score: TaskScore) -> dict[str, Any]:
    figures = {"score": score.score} | ({"low": score.ci.low, "high": score.ci.high} if score.ci else {})
    metrics = {key: {"name": key, "value": value} for key, value in figures.items() if value is not None}
    judged = score.total - score.errored
    return {
        "name": name, "scorer": name, "scored_samples": judged, "unscored_samples": score.errored, "metrics": metrics,
    }  # fmt: skip


def _item_sample(output: GradedOutput, base: ItemResult | None, place: int) -> dict[str, Any]:
    answer = output.turns[-1].answer if output.turns else ""
    scores = _score(SUBMISSION, output.verdict, output.value, answer)
    if base is not None:
        scores |= _score(BASE_MODEL, base.verdict, base.value, base.answer)
    sample = _sample(output.item or f"conversation {place}", list(_conversation(output.turns)), scores) | {
        "epoch": output.sample + 1,
        "metadata": {"group": output.group} if output.group else {},
        "model_usage": {"model": {"output_tokens": output.tokens, "total_tokens": output.tokens}},
    }
    if output.verdict == "errored":
        sample["error"] = {"message": "the grader failed on this item", "traceback": "", "traceback_ansi": ""}
    return sample


def _score(name: str, verdict: Verdict | None, value: float | None, answer: str) -> dict[str, Any]:
    """Returns one score by name; none where there is none, which is not zero."""
    if verdict is None or verdict == "errored":
        return {}
    return {name: {"value": value, "answer": answer, "explanation": verdict}}


def _sample(name: str, messages: Sequence[dict[str, Any]], scores: dict[str, Any]) -> dict[str, Any]:
    first = messages[0]["content"] if messages else ""
    return {"id": name, "epoch": 1, "input": first, "target": "", "messages": messages, "scores": scores}


def _conversation(turns: Iterable[Turn]) -> Iterator[dict[str, Any]]:
    """Yields prompts and answers. What is added to a prompt begins with the last answer, which is left out; a task may
    have shortened it."""
    before = ""
    for turn in turns:
        if isinstance(turn.prompt, str):
            added = [("user", turn.prompt if turn.is_whole else turn.prompt.removeprefix(before))]
        else:
            added = [(message.role, message.content) for message in turn.prompt]
            if not turn.is_whole and added and added[0][0] == "assistant":
                del added[0]
        yield from ({"role": role, "content": text} for role, text in added)
        yield {"role": "assistant", "content": turn.answer}
        before = turn.answer


def _agent_samples(run: RunDir) -> Iterator[dict[str, Any]]:
    """Yields the sample with the agent's steps; none for an agent without a transcript."""
    try:
        steps = read_model(run.trajectory, Trajectory).steps
    except FileNotFoundError:
        return
    executed = run.read("execute", ExecuteRecord)
    ended = {"ended": executed.ended, "why": executed.why} if executed else {}
    yield _sample(AGENT, [each for step in steps for each in _messages(step)], {}) | {"metadata": ended}


def _messages(step: Step) -> Iterator[dict[str, Any]]:
    """Yields what was said in a step, and the results of its actions."""
    role = "assistant" if step.source == "agent" else step.source
    content: Any = step.message
    if step.reasoning_content:
        content = [{"type": "reasoning", "reasoning": step.reasoning_content}, {"type": "text", "text": step.message}]
    calls = {call.tool_call_id: call for call in step.tool_calls or ()}
    asked = [{"id": name, "function": call.function_name, "arguments": call.arguments} for name, call in calls.items()]
    yield {"role": role, "content": content} | ({"tool_calls": asked} if asked else {})
    for result in step.observation.results if step.observation else ():
        call = calls.get(result.source_call_id or "")
        named = {"tool_call_id": call.tool_call_id, "function": call.function_name} if call else {}
        yield {"role": "tool", "content": result.content or ""} | named
