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
from a2rl.printable import printable
from a2rl.run import RunDir
from a2rl.secrets import scrub
from a2rl.workspace import MODE_RULES

MAX_WORDS = 1500
MAX_BEST, MAX_NEWEST = 5, 20
"""Submissions that are listed."""
MAX_FIELD = 300
MAX_PROMPT_BYTES = 64 << 10
"""Half of what the system takes as one argument (MAX_ARG_STRLEN, 128 KiB)."""


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
        words=printable(scrub(" ".join(before.words[-MAX_WORDS:].split())), MAX_WORDS),
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
    return text.strip().encode()[:MAX_PROMPT_BYTES].decode(errors="ignore")


def _submissions(entries: list[Entry]) -> list[str]:
    """A line each for the best and the newest, with what the grader answered: what the agent was told, and no more."""
    grades, lines, scores = grades_among(entries), list[str](), dict[int, float]()
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionRefused):
            more = "" if event.count == 1 else f" (and {event.count - 1} more)"
            lines.append(f"`{_shown(event.model_path)}`{more}: refused, {_shown(event.reason)}")
        elif isinstance(event, SubmissionAccepted):
            grade = grades.get(event.weights_digest)
            if grade and grade.result.score is not None:
                scores[len(lines)] = grade.result.score
            lines.append(f"`{_shown(event.model_path)}`: {_shown(str(grade.result)) if grade else 'not graded yet'}")
    best = sorted(scores, key=lambda place: -scores[place])[:MAX_BEST]
    chosen = sorted({*best, *range(max(0, len(lines) - MAX_NEWEST), len(lines))})
    left_out = len(lines) - len(chosen)
    others = [f"{left_out} others, none with a better score"] if left_out else []
    return [*others, *(lines[place] for place in chosen)]


def _shown(text: str) -> str:
    """What was named or answered, on one line; nothing in a prompt may break the command line that it is part of."""
    return printable(text, MAX_FIELD)
