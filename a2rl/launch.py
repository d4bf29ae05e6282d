"""From a run and an agent's definition to the command that the supervisor starts.

with Gateway(run, agent, settings) as gateway:                      # the way to the LLM, if the agent needs one
    command = launch(run, agent, settings, grading, gateway, attempt, prompt, session)
"""

import shlex
from contextlib import AbstractContextManager
from types import TracebackType
from urllib.parse import urlsplit

from a2rl.agent import Agent
from a2rl.errors import InfrastructureError, UsageError
from a2rl.files import write_beneath
from a2rl.grading.server_process import GradingServer
from a2rl.installation import Installation
from a2rl.isolation.reach import confinement_of
from a2rl.proxy import Proxy
from a2rl.run import RunDir
from a2rl.secrets import known
from a2rl.settings import Settings
from a2rl.supervisor import AgentCommand
from a2rl.trajectory import transcript_path
from a2rl.workspace import agent_environment

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
NO_KEY = "none-needed"
"""Instead of a key, where the LLM is one of the user's own: some agent systems do not start without any."""
UNLIMITED = 1_000_000
"""Turns."""
PORTS = {"http": 80, "https": 443}


class Gateway(AbstractContextManager["Gateway"]):
    """How an agent gets to its LLM: straight to a port of this machine, through a logging proxy to all else."""

    def __init__(self, run: RunDir, agent: Agent) -> None:
        """Raises UsageError: the address of the LLM is none."""
        self.base_url = (run.spec.base_url or agent.base_url or "").rstrip("/")
        self.ports: tuple[int, ...] = ()
        self.environment: dict[str, str] = {}
        self._proxy: Proxy | None = None
        if not agent.calls_llm:
            return
        parts = urlsplit(self.base_url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise UsageError(f"{self.base_url!r} is no address of an API: write for example http://127.0.0.1:8080")
        port = parts.port or PORTS[parts.scheme]
        if parts.hostname in LOOPBACK:
            self.ports = (port,)
        else:
            self._proxy = Proxy([*agent.hosts, f"{parts.hostname}:{port}"], run.logs / "proxy.jsonl")

    def __enter__(self) -> "Gateway":
        if self._proxy is not None:
            proxy = self._proxy.__enter__()
            self.ports = (proxy.port,)
            ways = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), proxy.url)
            self.environment = {**ways, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._proxy is not None:
            self._proxy.__exit__(kind, error, trace)


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
        InfrastructureError: its settings cannot be written.
    """
    spec, installation, home = run.spec, Installation(agent, settings), run.workspace / ".home"
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
    for path, text in {
        ".profile": profile,
        **{path: text.format(**settled) for path, text in agent.files.items()},
    }.items():
        try:
            write_beneath(home, path, text)
        except OSError as error:
            raise InfrastructureError(f"cannot write {path} in the agent's HOME: {error.strerror}") from error
    printed = transcript_path(run, agent, attempt)
    return AgentCommand(
        command=agent.resume_command(names) if session and agent.resume else agent.command(names),
        cwd=str(run.workspace),
        env={**environment, **_key(run, agent, settings), **gateway.environment},
        log=str(run.logs / "agent.log"),
        transcript=str(printed or ""),
        takes_messages=agent.messages is not None,
        secrets=known(),
        confinement=confinement_of(run, agent, settings, (grading.port, *gateway.ports), installation.extra_read),
    )


def _key(run: RunDir, agent: Agent, settings: Settings) -> dict[str, str]:
    wants = agent.needs_one_of
    return {wants[0]: NO_KEY} if run.spec.base_url and wants and not settings.forwarded(wants) else {}
