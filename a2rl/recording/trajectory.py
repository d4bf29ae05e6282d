"""What an agent says of its own work, in its transcripts and in a summary.

The transcripts of all attempts are read for the report, for quotas, and to resume from. A run's `trajectory.json`
contains all attempts in the format ATIF (a2rl/agent_systems/transcripts/atif.py), which other tools can read.

The reference tells agents to write a summary: `summary.md` (bench/agents/claude/AGENTS.md:5, where `bench` is as in
docs/paper-preset.md), or `summary.md` and `summary.jsonl` in `reports/` (bench/core/skill.md:1,37). They are kept and
shown as the agent's claims, and decide nothing.
"""

from contextlib import suppress
from pathlib import Path

from a2rl.agent_systems.definition import Agent
from a2rl.agent_systems.transcripts import Agent as AtifAgent
from a2rl.agent_systems.transcripts import FinalMetrics, Reading, read_transcript, trajectory
from a2rl.core.files import TEMPORARY, write_atomically
from a2rl.linux.untrusted_folder import UntrustedFolder
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted
from a2rl.run.records import LlmUse, Usage


def transcript_path(run: RunDir, agent: Agent, attempt: int) -> Path | None:
    """Returns the file for the agent's standard output; None unless the agent prints its transcript there."""
    if agent.transcript is None or not agent.transcript.is_printed:
        return None
    return run.logs / f"transcript-{attempt}.jsonl"


def read_attempt(run: RunDir, agent: Agent, *attempts: int) -> Reading:
    """Reads the transcripts of an attempt, or of several in order that continue one session; the reading is empty if
    there are none.

    The last copy of each file counts: an attempt copies only what was changed in it, but that as a whole.
    """
    if agent.transcript is None:
        return Reading()
    copies = (path for attempt in attempts for path in (run.logs / f"transcript-{attempt}").glob("*"))
    kept = sorted({path.name: path for path in copies if path.suffix != TEMPORARY}.items())
    printed = filter(None, (transcript_path(run, agent, attempt) for attempt in attempts))
    return read_transcript(agent.transcript.format, *(path for _, path in kept), *printed)


def read_attempts(run: RunDir, agent: Agent) -> list[Reading]:
    """Reads the transcripts of all attempts. Attempts that continue the same session in files make one reading."""
    readings = {event.attempt: read_attempt(run, agent, event.attempt) for event in run.ledger.events(AgentStarted)}
    if agent.transcript is None or not agent.transcript.patterns:
        return list(readings.values())
    sessions: dict[str | int, list[int]] = {}
    for attempt, reading in readings.items():
        sessions.setdefault(reading.session_id or attempt, []).append(attempt)
    return [
        readings[first] if not others else read_attempt(run, agent, first, *others)
        for first, *others in sessions.values()
    ]


def write_trajectory(run: RunDir, agent: Agent, version: str | None, seen: LlmUse | None) -> Usage | None:
    """Writes `trajectory.json` and returns the usage that it contains; None for agents that write no transcript.

    Args:
        seen: The requests to the LLM as the relay measured them; None if it did not.
    """
    if agent.transcript is None:
        return None
    readings = read_attempts(run, agent)
    described = AtifAgent(name=agent.id, version=version or "unknown", model_name=run.spec.driver)
    total = seen and FinalMetrics(
        total_prompt_tokens=seen.prompt_tokens,
        total_completion_tokens=seen.completion_tokens,
        total_cached_tokens=seen.cached_tokens,
        total_cost_usd=seen.cost_usd,
    )
    whole = trajectory(readings, described, total or FinalMetrics())
    write_atomically(run.trajectory, whole.to_json())
    return Usage(
        steps=len([step for step in whole.steps if step.source == "agent"]),
        tool_calls=sum(len(step.tool_calls or ()) for step in whole.steps),
        unreadable=sum(reading.unreadable for reading in readings),
    )


def last_message(reading: Reading) -> str:
    """Returns the agent's last message; empty if there is none."""
    messages = [step.message for step in reading.steps if step.source == "agent" and step.message]
    return str(messages[-1]) if messages else ""


PATHS = ("summary.md", "reports/summary.md", "summary.jsonl", "reports/summary.jsonl")
MAX_BYTES = 256 << 10
"""What is kept of each file."""
MAX_KEPT_BYTES = 4 * MAX_BYTES
"""What is read again: in place of a byte that is no text stand three, and the run may be somebody else's."""


def keep_summary(run: RunDir) -> None:
    """Copies the beginnings of the files from the workspace, as far as they are regular files."""
    with suppress(OSError), UntrustedFolder.at(run.workspace) as workspace:
        for path in PATHS:
            with suppress(OSError):
                found = workspace.read(path, MAX_BYTES)
                write_atomically(run.root / "claims" / path, found.decode("utf-8", "replace"))


def read_summary(run: RunDir) -> dict[str, str]:
    """Returns what was kept, by path; nothing if the agent wrote no summary."""
    return {path: text for path in PATHS if (text := _kept(run, path)).strip()}


def _kept(run: RunDir, path: str) -> str:
    try:
        with (run.root / "claims" / path).open("rb") as file:
            return file.read(MAX_KEPT_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
