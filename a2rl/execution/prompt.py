"""What an agent is told: the instructions in its workspace, and the prompt of each start of an LLM agent.

Both are templates (instructions.md, prompt.md) for all agent systems. Numbers and rules in them come from the settings
of the run and from a2rl/run/rules.yaml.
"""

import time
from pathlib import Path
from typing import Literal, NamedTuple

from jinja2 import StrictUndefined, Template

from a2rl.agent_systems.definition import Agent
from a2rl.config.provision import Provision
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.grading.answers import AT_ONCE, EXAMPLE, SUBMIT
from a2rl.grading.submission_states import quota_in_words, usual_s
from a2rl.models.base_model import reference_name
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir
from a2rl.run.events import BaselineKnown, SubmissionAccepted, SubmissionRefused
from a2rl.run.ledger import Entry, grades_among
from a2rl.run.ranking import sample_note
from a2rl.run.rules import MAX_WAITING, rules
from a2rl.run.spec import Mode
from a2rl.task_api.catalog import load_task

MODE_RULES: dict[Mode, str] = {
    "free": "Any way of training is allowed: SFT, DPO, GRPO, PPO, online RL, or several in turn.",
    "sft-only": "Supervised fine-tuning only: no reward, no preference and no policy-gradient training.",
    "multi": "Any way of training is allowed. You may be started several times, each time with the results so far.",
    "rl-oriented": "Reinforcement learning, which may begin with a supervised warm-up: the checkpoint that counts must"
    " have been improved by a reward.",
    "rl-only": "Reinforcement learning only, directly from the base model: no supervised training on any answers.",
}
MAX_MESSAGE_CHARS = 1500
MAX_BEST, MAX_NEWEST = 5, 20
"""The number of the best submissions, and of the newest ones, that are listed."""
MAX_FIELD_CHARS = 300
MAX_PROMPT_BYTES = 64 << 10
"""Half of what Linux accepts as one argument (MAX_ARG_STRLEN, 128 KiB)."""


class StartContext(NamedTuple):
    """What happened before a start of the agent."""

    earlier: Literal["", "interrupted", "finished"] = ""
    trial: int = 1
    """The number of the trial that starts now; greater than 1 only in mode `multi`."""
    last_message: str = ""
    """The end of what the agent said before."""
    session: str | None = None
    """The session to continue, if one was interrupted."""


def render_prompt(run: RunDir, agent: Agent, remaining_s: float, context: StartContext) -> str:
    """Renders the prompt of a start.

    Args:
        remaining_s: Seconds until the agent is ended.
        context: What came before this start.
    """
    spec, entries = run.spec, run.ledger.entries()
    grading_s = usual_s(run, entries)
    baselines = [str(entry.event.public) for entry in entries if isinstance(entry.event, BaselineKnown)]
    template = Path(__file__).with_name("prompt.md").read_text(encoding="utf-8")
    text: str = Template(template, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).render(
        workspace=run.workspace,
        earlier=context.earlier,
        trial=context.trial,
        trials=spec.trials,
        last_message=printable(scrub(" ".join(context.last_message[-MAX_MESSAGE_CHARS:].split())), MAX_MESSAGE_CHARS),
        mode=spec.mode,
        mode_rule=MODE_RULES[spec.mode],
        left=format_duration(remaining_s),
        deadline=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(time.time() + remaining_s)),
        max_turns=spec.max_turns if agent.limits_turns else None,
        quota=quota_in_words(spec),
        grade=format_duration(max(1.0, grading_s)) if grading_s else "",
        note=agent.prompt_note,
        baseline=baselines[0] if baselines else "-",
        submissions=_submissions(entries),
    )
    return text.strip().encode()[:MAX_PROMPT_BYTES].decode(errors="ignore")


def render_instructions(run: RunDir, provision: Provision | None) -> str:
    """Renders the instructions in the workspace, with what the agent gets in addition."""
    spec, task = run.spec, load_task(run.spec.task, run.checkout)
    template = Path(__file__).with_name("instructions.md").read_text(encoding="utf-8")
    text: str = Template(template, undefined=StrictUndefined, keep_trailing_newline=True).render(
        base_model=reference_name(spec.model),
        mode=spec.mode,
        rules=rules().instructions,
        mode_rule=MODE_RULES[spec.mode],
        budget=format_duration(spec.budget_s),
        refunds=spec.protocol == "strict",
        strict=spec.protocol == "strict",
        sample=sample_note(run),
        answers=spec.generation.in_words(),
        answers_note=spec.generation.note,
        options=[
            f"`{name}: {value}`. {task.options[name].help}"
            for name, value in spec.options.items()
            if value != task.options[name].default
        ],
        quota=quota_in_words(spec),
        waiting=MAX_WAITING,
        submit=SUBMIT,
        at_once=AT_ONCE,
        example=EXAMPLE,
        merge_adapters=spec.merge_adapters,
        python=provision.python if provision else "",
        read=provision.read if provision else (),
        hosts=provision.hosts if provision else (),
    )
    return text


def _submissions(entries: list[Entry]) -> list[str]:
    """Returns one line for each of the best and the newest submissions, with only the grader's answer."""
    grades = grades_among(entries)
    lines: list[str] = []
    scores: dict[int, float] = {}
    """Scores by the number of the line."""
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionRefused):
            more = "" if event.count == 1 else f" (and {event.count - 1} more)"
            lines.append(f"`{_one_line(event.model_path)}`{more}: refused, {_one_line(event.reason)}")
        elif isinstance(event, SubmissionAccepted):
            grade = grades.get(event.weights_digest)
            if grade and grade.result.score is not None:
                scores[len(lines)] = grade.result.score
            answer = _one_line(str(grade.result)) if grade else "not graded yet"
            lines.append(f"`{_one_line(event.model_path)}`: {answer}")
    best = sorted(scores, key=lambda number: -scores[number])[:MAX_BEST]
    newest = range(max(0, len(lines) - MAX_NEWEST), len(lines))
    chosen = sorted({*best, *newest})
    left_out = len(lines) - len(chosen)
    others = [f"{left_out} others, none with a better score"] if left_out else []
    return [*others, *(lines[number] for number in chosen)]


def _one_line(text: str) -> str:
    """Returns a printable text on one line, because a prompt must not break the command line that contains it."""
    return printable(text, MAX_FIELD_CHARS)
