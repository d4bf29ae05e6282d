"""What happened in a run, in sentences."""

from collections.abc import Sequence

from a2rl.run.events import AgentEnded, AgentStarted, ProcessesSurvived, RunFailed, RunInterrupted
from a2rl.run.ledger import Entry
from a2rl.run.records import VERDICTS, GradeRecord


def verdict_in_words(grade: GradeRecord | None) -> str:
    """Returns the verdict with its reason."""
    if grade is None:
        return "the run is not finished"
    return VERDICTS[grade.verdict] + (f" ({grade.reason})" if grade.reason else "")


def story(entries: Sequence[Entry]) -> list[str]:
    """Returns sentences on how the agent ended and on everything unusual."""
    starts = [entry.event for entry in entries if isinstance(entry.event, AgentStarted)]
    sentences: list[str] = []
    trials = starts[-1].trial if starts else 1
    if trials > 1:
        sentences.append(f"It made {trials} attempts, each with a summary of the previous ones.")
    if len(starts) > trials:
        sentences.append(f"The agent was started {len(starts)} times, because the run was resumed.")
    for event in (entry.event for entry in entries):
        if isinstance(event, RunInterrupted):
            sentences.append("It was interrupted by the user.")
        elif isinstance(event, ProcessesSurvived):
            listing = ", ".join(f"{pid} {name}" for pid, name in event.processes[:20])
            sentences.append(f"{len(event.processes)} of its processes could not be killed ({listing}).")
        elif isinstance(event, RunFailed):
            sentences.append(f"The run failed: {event.reason}.")
        elif isinstance(event, AgentEnded):
            sentences.append(_sentence_on_end(event))
    return sentences


def _sentence_on_end(event: AgentEnded) -> str:
    status = f" with exit code {event.exit_code}" if event.exit_code is not None else ""
    sentence = {
        "finished": "The agent ended by itself",
        "crashed": f"The agent crashed{status}" if event.exit_code != 0 else "The agent failed, with exit code 0",
        "deadline": "The agent worked until the deadline and was then ended",
        "quota": "The agent was ended",
        "unavailable": "The agent could not be started",
        "lost": "The pipeline failed while the agent was running, and the agent was ended",
        "interrupted": "The agent was ended",
    }[event.reason]
    return f"{sentence}: {event.why}." if event.why else f"{sentence}."
