"""An agent system's own account of an attempt, read from its transcript in a process of its own.

A transcript is the agent's work: reading it may take any time and any memory, and may fail in any way. None of that is
to reach the pipeline.
"""

import subprocess

from pydantic import BaseModel, ConfigDict

from a2rl.agent import Agent
from a2rl.background import note, pipeline_log
from a2rl.errors import InfrastructureError
from a2rl.installation import Installation
from a2rl.keys import first_line
from a2rl.process import child_environment, module_command
from a2rl.records import Usage
from a2rl.run import RunDir
from a2rl.settings import Settings
from a2rl.trajectory import last_words, read_attempt, write_trajectory
from a2rl.transcripts import why

TIMEOUT_S = 120.0
MAX_WORDS = 20_000


class Account(BaseModel):
    """What it says; nothing where it says nothing, or nothing that could be read."""

    model_config = ConfigDict(frozen=True)

    why: str = ""
    """It ended, in plain words."""
    words: str = ""
    """The last of what the agent said."""
    session: str | None = None
    """To go on with."""
    usage: Usage | None = None
    """Of all attempts so far."""


def read_account(run: RunDir, agent: Agent, settings: Settings, attempt: int, exit_code: int | None) -> Account:
    """Reads it in a child process, which also writes `trajectory.json`; never fails, and ends within two minutes."""
    if agent.transcript is None:
        return Account()
    code = "" if exit_code is None else str(exit_code)
    command = module_command("a2rl.observer", "account", str(run.root), str(attempt), code)
    try:
        done = subprocess.run(
            command, cwd=settings.root, env=child_environment(settings), input=first_line({}).encode(),
            capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise InfrastructureError((done.stderr.decode(errors="replace").splitlines() or ["it was killed"])[-1])
        return Account.model_validate_json(done.stdout)
    except (OSError, ValueError, InfrastructureError, subprocess.TimeoutExpired) as error:
        note(pipeline_log(run), "the transcript could not be read", error)
        return Account()


def make_account(run: RunDir, agent: Agent, settings: Settings, attempt: int, exit_code: int | None) -> Account:
    """Reads it here and now."""
    reading = read_attempt(run, agent, attempt)
    return Account(
        why=why(reading, exit_code) or "",
        words=last_words(reading)[-MAX_WORDS:],
        session=reading.session_id,
        usage=write_trajectory(run, agent, Installation(agent, settings).version),
    )
