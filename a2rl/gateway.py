"""How an agent gets to its LLM.

An agent system that takes the address of its API (`{base_url}` in its definition) is led to a relay of ours, which
holds the key and sees what it does (a2rl/relay). One that does not goes straight to a port of this machine, or through
a proxy that sees which hosts it talks to and nothing else (a2rl/proxy.py). Other hosts that its definition lists are
reached through that proxy, too.

with Gateway(run, agent, settings) as gateway:
    gateway.base_url, gateway.ports, gateway.environment      # for the agent
"""

import secrets
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from urllib.parse import urlsplit

from a2rl.agent import Agent
from a2rl.errors import UsageError
from a2rl.keys import refuse_password
from a2rl.proxy import Proxy, endpoint
from a2rl.relay.process import RelayProcess
from a2rl.run import RunDir
from a2rl.settings import Settings

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
NO_KEY = "none-needed"
"""Instead of a key, where the LLM is one of the user's own: some agent systems do not start without any."""
PORTS = {"http": 80, "https": 443}


class Gateway(AbstractContextManager["Gateway"]):
    """The way out of one attempt; it is open within the context.

    Raises:
        UsageError: the address of the LLM is none, or holds a password.
    """

    def __init__(self, run: RunDir, agent: Agent, settings: Settings) -> None:
        self._run, self._agent, self._settings = run, agent, settings
        self._provider = (run.spec.base_url or agent.base_url or "").rstrip("/")
        self.base_url = self._provider
        """Where the agent finds the API."""
        self.ports: tuple[int, ...] = ()
        """On loopback, that it must reach."""
        self.environment: dict[str, str] = {}
        """What it has of keys, and the way through the proxy."""
        self.relay: RelayProcess | None = None
        self._stack = ExitStack()
        if agent.calls_llm:
            self._host, self._port, self._path = _parts(self._provider)

    def __enter__(self) -> "Gateway":
        if self._agent.calls_llm:
            with ExitStack() as stack:
                self._open(stack)
                self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self, stack: ExitStack) -> None:
        hosts = {endpoint(host) for host in self._agent.hosts}
        if self._agent.takes_base_url:
            self._open_relay(stack)
            hosts.discard((self._host, self._port))
        elif self._host in LOOPBACK:
            self.ports = (self._port,)
        else:
            hosts.add((self._host, self._port))
        if hosts:
            self._open_proxy(stack, [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts])
        if not self._keys() and self._run.spec.base_url and (wants := self._agent.needs_one_of):
            self.environment[wants[0]] = NO_KEY

    def _keys(self) -> dict[str, str]:
        return self._settings.forwarded(self._agent.needs_one_of)

    def _open_relay(self, stack: ExitStack) -> None:
        keys = self._keys()
        stand_ins = {name: f"a2rl-{secrets.token_hex(16)}" for name in keys}
        self.relay = stack.enter_context(RelayProcess(self._run, self._settings, self._provider, keys, stand_ins))
        self.base_url = f"http://127.0.0.1:{self.relay.port}{self._path}"
        self.ports = (self.relay.port,)
        self.environment |= stand_ins

    def _open_proxy(self, stack: ExitStack, hosts: list[str]) -> None:
        proxy = stack.enter_context(Proxy(hosts, self._run.logs / "proxy.jsonl"))
        self.ports = (*self.ports, proxy.port)
        self.environment |= dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), proxy.url)
        self.environment |= {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


def _parts(url: str) -> tuple[str, int, str]:
    """Host, port and path of an API's address."""
    wrong = UsageError(f"{url!r} is no address of an API: write for example http://127.0.0.1:8080")
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise wrong from error
    if parts.scheme not in PORTS or not parts.hostname or parts.query or parts.fragment:
        raise wrong
    refuse_password(url, "the address of the LLM")
    return parts.hostname, port, parts.path.rstrip("/")
