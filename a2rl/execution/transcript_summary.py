"""Summarises an agent system's transcript of an attempt, in a separate process.

The agent writes the transcript: reading it may take any amount of time and memory, and may fail in any way. The
separate process keeps all of that away from the pipeline.
"""

import subprocess

from pydantic import BaseModel, ConfigDict

from a2rl.agent_systems.definition import Agent
from a2rl.agent_systems.installation import Installation
from a2rl.agent_systems.transcripts.ending import Account
from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import log_failure
from a2rl.core.processes import child_environment, module_command
from a2rl.core.settings import Settings
from a2rl.llm.keys import keys_message
from a2rl.recording.trajectory import last_message, read_attempt, write_trajectory
from a2rl.run.directory import RunDir, pipeline_log
from a2rl.run.records import Usage

TIMEOUT_S = 120.0
MAX_MESSAGE_CHARS = 20_000


class TranscriptSummary(BaseModel):
    """What a transcript reports. Fields are empty if it does not report them or cannot be read."""

    model_config = ConfigDict(frozen=True)

    account: Account | None = None
    """What it says about the end of the attempt."""
    last_message: str = ""
    """The end of what the agent said."""
    session: str | None = None
    """The session id with which the agent system can continue."""
    usage: Usage | None = None
    """The use of all attempts so far."""


def read_summary(run: RunDir, agent: Agent, settings: Settings, attempt: int) -> TranscriptSummary:
    """Reads the transcript in a child process, which also writes `trajectory.json`.

    It never raises and returns within `TIMEOUT_S`; the summary is empty if reading failed.
    """
    if agent.transcript is None:
        return TranscriptSummary()
    command = module_command("a2rl.execution.observer", "summary", str(run.root), str(attempt))
    try:
        done = subprocess.run(
            command, cwd=settings.root, env=child_environment(settings), input=keys_message({}).encode(),
            capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise InfrastructureError((done.stderr.decode(errors="replace").splitlines() or ["it was killed"])[-1])
        return TranscriptSummary.model_validate_json(done.stdout)
    except (OSError, ValueError, InfrastructureError, subprocess.TimeoutExpired) as error:
        log_failure(pipeline_log(run), "the transcript could not be read", error)
        return TranscriptSummary()


def summarise_transcript(run: RunDir, agent: Agent, settings: Settings, attempt: int) -> TranscriptSummary:
    """Reads the transcript in this process and writes `trajectory.json`; called by the child process."""
    reading = read_attempt(run, agent, attempt)
    return TranscriptSummary(
        account=reading.account(),
        last_message=last_message(reading)[-MAX_MESSAGE_CHARS:],
        session=reading.session_id,
        usage=write_trajectory(run, agent, Installation(agent, settings).version),
    )
