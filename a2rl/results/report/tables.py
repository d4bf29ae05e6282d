"""The smaller tables of a run's report: names with values."""

from typing import NamedTuple

from a2rl.run.directory import RunDir
from a2rl.run.records import GradeRecord, SetupRecord, Usage
from a2rl.scoring.score import Group


class Compared(NamedTuple):
    """A figure for the base model and for the result."""

    name: str
    before: str
    after: str


def kinds(grade: GradeRecord) -> list[Compared]:
    """Returns the scores for each kind of item, if the task has kinds."""
    after = grade.final.groups if grade.final else {}
    return [
        Compared(f"{name} ({group.total})", _percent(group), _percent(after.get(name)))
        for name, group in grade.baseline.groups.items()
    ]


def measures(grade: GradeRecord) -> list[Compared]:
    """Returns the other figures of the task."""
    before, after = grade.baseline.measures, grade.final.measures if grade.final else {}
    return [Compared(name, *(_mean(each.get(name)) for each in (before, after))) for name in {**before, **after}]


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(group: Group | None) -> str:
    return "-" if group is None or group.score is None else f"{group.score:.1f}"


def judge_figures(grade: GradeRecord | None) -> list[tuple[str, str]]:
    """Returns what the judge was asked, what it cost, and its noise."""
    if grade is None or grade.judge is None:
        return []
    judge = grade.judge
    shown = {
        "judge": judge.name or judge.model,
        "model": judge.model,
        "asked by": judge.annotator,
        "requests": f"{judge.use.requests:,}",
        "tokens in": f"{judge.use.prompt_tokens:,}",
        "tokens out": f"{judge.use.completion_tokens:,}",
        "paid": f"${judge.use.dollars:.4f}",
    }
    if judge.limit_usd is not None:
        shown["limit"] = f"${judge.limit_usd:.4f}"
    if judge.for_agent.requests or judge.searches:
        shown["of which for the agent"] = f"{judge.for_agent.requests:,} requests, ${judge.for_agent.dollars:.4f}"
        shown["the agent's searches"] = f"{judge.searches:,}"
    shown["noise"] = str(judge.noise) if judge.noise else "not measured (--judge-sample)"
    return list(shown.items())


def usage_figures(usage: Usage | None) -> list[tuple[str, str]]:
    """Returns the figures that an agent system reports of its own work."""
    if usage is None:
        return []
    figures = [
        ("steps", usage.steps),
        ("tool calls", usage.tool_calls),
        ("tokens in", usage.prompt_tokens),
        ("of which cached", usage.cached_tokens),
        ("tokens out", usage.completion_tokens),
    ]
    shown = [(name, "not reported" if value is None else f"{value:,}") for name, value in figures]
    cost = "not reported" if usage.cost_usd is None else f"${usage.cost_usd:.2f}"
    unread = [("lines not understood", f"{usage.unreadable:,}")] if usage.unreadable else []
    return [*shown, ("cost, as it reports", cost), *unread]


def settings_and_versions(run: RunDir, ready: SetupRecord) -> list[tuple[str, str]]:
    """Returns what the run was made with."""
    spec = run.spec
    shown = {
        "run": spec.run_id,
        "suite": spec.suite,
        "launch": spec.launch or "-",
        "driver": spec.driver or "-",
        "model digest": ready.model_digest[:16],
        **({"base model not tried": ready.base_not_tried} if ready.base_not_tried else {}),
        "data digest": ready.data_digest[:16],
        **ready.data_about,
        "grading": f"{spec.backend}{', exact' if spec.exact else ''}",
        "answers": spec.generation.in_words(),
        **spec.options,
        "draw of the eval set": spec.draw.commitment[:16] if spec.draw else f"split seed {spec.split_seed}",
        "created": spec.created_at,
        "git commit": spec.git_commit or "-",
        **spec.versions,
    }
    return list(shown.items())
