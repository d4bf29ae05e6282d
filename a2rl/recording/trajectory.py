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


def read_attempt(run: RunDir, agent: Agent, attempt: int) -> Reading:
    """Reads the transcripts of one attempt; the reading is empty if there are none."""
    if agent.transcript is None:
        return Reading()
    copies = (run.logs / f"transcript-{attempt}").glob("*")
    kept = sorted(path for path in copies if path.suffix != TEMPORARY)
    printed = transcript_path(run, agent, attempt)
    return read_transcript(agent.transcript.format, *kept, *([printed] if printed else ()))


def read_attempts(run: RunDir, agent: Agent) -> list[Reading]:
    """Reads the transcripts of all attempts.

    If several attempts continue the same session, only the last one is returned, because it contains the others.
    """
    attempts = [event.attempt for event in run.ledger.events(AgentStarted)]
    readings = [read_attempt(run, agent, attempt) for attempt in attempts]
    if agent.transcript is None or not agent.transcript.patterns:
        return readings
    later = [{after.session_id for after in readings[place + 1 :]} for place in range(len(readings))]
    return [
        reading
        for reading, sessions in zip(readings, later, strict=True)
        if reading.session_id is None or reading.session_id not in sessions
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
