"""From a run and an agent's definition to the command that the supervisor starts.

with Gateway(run, agent, settings) as gateway:                      # the way to the LLM, if the agent needs one
    command = launch(run, agent, settings, grading, gateway, attempt, prompt, session)
"""

import re
import shlex

from a2rl.agent import Agent
from a2rl.events import AgentConfined
from a2rl.gateway import Gateway
from a2rl.grading.server_process import GradingServer
from a2rl.installation import Installation
from a2rl.isolation.decide import decide_again
from a2rl.isolation.reach import confinement_of
from a2rl.isolation.resources import Resources
from a2rl.isolation.users import NAME
from a2rl.process import TRACE
from a2rl.records import SetupRecord
from a2rl.run import RunDir
from a2rl.secrets import known
from a2rl.settings import Settings
from a2rl.supervisor import AgentCommand
from a2rl.trajectory import transcript_path
from a2rl.workspace import agent_environment, write_into_workspace

SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
"""A session's name as agent systems make them. The agent writes it, and it must not become an option of a command."""
UNLIMITED = 1_000_000
"""Turns."""


def launch(
    run: RunDir,
    agent: Agent,
    settings: Settings,
    grading: GradingServer,
    gateway: Gateway,
    attempt: int,
    prompt: str,
    session: str | None,
) -> AgentCommand:
    """The command of a start; writes the agent system's settings into its HOME.

    Args:
        prompt: what it is told.
        session: to go on with, where there is one and the agent system can.

    Raises:
        UsageError: this machine cannot confine it as was asked, or as it was when the run began.
        SpoiledWorkspace: it left its HOME so that its settings cannot be written.
        InfrastructureError: they cannot be written for another reason, such as a full disk.
    """
    session = session if session and SESSION.fullmatch(session) else None
    spec, installation, home = run.spec, Installation(agent, settings), run.workspace / ".home"
    strength = decide_again(spec.sandbox, run.need("setup", SetupRecord).sandbox, settings)
    names: dict[str, str] = {
        "program": str(installation.program or ""),
        "agent_dir": str(agent.folder),
        "workspace": str(run.workspace),
        "home": str(home),
        "prompt": prompt,
        "driver": spec.driver or "",
        "base_url": gateway.base_url,
        "max_turns": str(spec.max_turns or ""),
        "session": session or "",
        "attempt": str(attempt),
    }
    environment = agent_environment(run, agent, grading.url, settings, names, installation.paths)
    settled = {**names, "max_turns": str(spec.max_turns or UNLIMITED)}  # a settings file has no place for nothing
    # A login shell, which some systems run commands in, begins with the machine's own PATH.
    profile = f"export PATH={shlex.quote(environment['PATH'])}\n"
    files = {".profile": profile, **{path: text.format(**settled) for path, text in agent.files.items()}}
    write_into_workspace(run, {f".home/{path}": text for path, text in files.items()})
    confinement = confinement_of(
        run, agent, settings, strength, (grading.port, *gateway.ports), installation.extra_read
    )
    run.ledger.append(AgentConfined(attempt=attempt, sandbox=strength))
    user = {"USER": NAME, "LOGNAME": NAME} if confinement and confinement.user else {}
    printed = transcript_path(run, agent, attempt)
    return AgentCommand(
        command=agent.resume_command(names) if session and agent.resume else agent.command(names),
        cwd=str(run.workspace),
        env={**environment, **user, **gateway.environment},
        log=str(run.logs / "agent.log"),
        transcript=str(printed or ""),
        takes_messages=agent.messages is not None,
        secrets=known(),
        confinement=confinement,
        resources=Resources.of_machine(run.workspace, settings.environ),
        trace=str(run.logs / TRACE),
    )
