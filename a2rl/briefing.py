"""What an LLM agent is told when it is started: one template for all agent systems, rendered for each start."""

import time
from pathlib import Path
from typing import Literal, NamedTuple

from jinja2 import StrictUndefined, Template

from a2rl.agent import Agent
from a2rl.budget import format_duration
from a2rl.events import BaselineKnown, SubmissionAccepted, SubmissionRefused
from a2rl.grading.quota import quota_in_words, usual_s
from a2rl.ledger import Entry, grades_among
from a2rl.run import RunDir
from a2rl.workspace import MODE_RULES

MAX_WORDS = 1500


class Before(NamedTuple):
    """What came before this start."""

    earlier: Literal["", "interrupted", "finished"] = ""
    trial: int = 1
    """Of the attempts that mode `multi` makes, the one that starts now."""
    words: str = ""
    """The last that the agent said."""
    session: str | None = None
    """To go on with, where one was cut off."""


def brief(run: RunDir, agent: Agent, remaining_s: float, before: Before) -> str:
    """The prompt of a start.

    Args:
        remaining_s: until the agent is ended.
    """
    spec, entries = run.spec, run.ledger.entries()
    template = Path(__file__).with_name("prompt.md").read_text(encoding="utf-8")
    text: str = Template(template, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).render(
        workspace=run.workspace,
        earlier=before.earlier,
        trial=before.trial,
        trials=spec.trials,
        words=" ".join(before.words[-MAX_WORDS:].split()),
        mode=spec.mode,
        mode_rule=MODE_RULES[spec.mode],
        left=format_duration(remaining_s),
        deadline=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(time.time() + remaining_s)),
        max_turns=spec.max_turns,
        quota=quota_in_words(run),
        grade=format_duration(max(1.0, usual_s(run, entries))) if usual_s(run, entries) else "",
        note=agent.prompt_note,
        baseline=next((str(entry.event.public) for entry in entries if isinstance(entry.event, BaselineKnown)), "-"),
        submissions=_submissions(entries),
    )
    return text.strip()


def _submissions(entries: list[Entry]) -> list[str]:
    """One line for each, with what the grader answered: what the agent was told, and no more."""
    grades, lines = grades_among(entries), []
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionRefused):
            more = "" if event.count == 1 else f" (and {event.count - 1} more)"
            lines.append(f"`{event.model_path}`{more}: refused, {event.reason}")
        elif isinstance(event, SubmissionAccepted):
            grade = grades.get(event.weights_digest)
            lines.append(f"`{event.model_path}`: {grade.result if grade else 'not graded yet'}")
    return lines
