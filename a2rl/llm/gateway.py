"""Connects an agent to its LLM.

An agent system that takes the URL of its API (`{base_url}` in its definition) is pointed to our relay, which holds the
API key and sees the requests (a2rl/llm/relay). Other agent systems connect directly to a port of this machine, or
through a proxy that sees only which hosts they contact (a2rl/llm/proxy.py). Other hosts that the definition lists are
reached through that proxy, too.

with Gateway(run, agent, settings) as gateway:
    gateway.base_url, gateway.ports, gateway.environment      # for the agent
"""

import secrets
from contextlib import ExitStack

from a2rl.agent_systems.definition import Agent
from a2rl.config.params import load_params
from a2rl.config.provision import hosts_in
from a2rl.core.settings import LOOPBACK, Settings
from a2rl.core.urls import api_address, endpoint
from a2rl.llm.keys import PLACEHOLDER_KEY
from a2rl.llm.proxy import Proxy
from a2rl.llm.relay.process import RelayProcess
from a2rl.run.directory import RunDir
from a2rl.run.rules import rules

PROXY_LOG = "proxy.jsonl"


class Gateway(ExitStack):
    """The network access of one attempt; it is open within the context.

    Raises:
        UsageError: The LLM URL is invalid, or contains a password.
    """

    def __init__(self, run: RunDir, agent: Agent, settings: Settings) -> None:
        super().__init__()
        self._run, self._agent, self._settings = run, agent, settings
        self._provider = (run.spec.base_url or agent.base_url or "").rstrip("/")
        self.base_url = self._provider
        """The URL of the API for the agent."""
        self.ports: tuple[int, ...] = ()
        """The loopback ports that the agent must be able to connect to."""
        self.environment: dict[str, str] = {}
        """The agent's variables for keys and for the proxy."""
        if agent.calls_llm:
            self._host, self._port, self._path = api_address(self._provider)

    def __enter__(self) -> "Gateway":
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def _open(self) -> None:
        hosts = {
            endpoint(host) for host in (*self._agent.hosts, *rules().hosts.allowed, *hosts_in(self._run.spec.hosts))
        }
        if self._agent.calls_llm:
            self._open_llm(hosts)
        if hosts:
            self._open_proxy([f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts])

    def _open_llm(self, hosts: set[tuple[str, int]]) -> None:
        """Opens the way to the LLM. `hosts`, those of the proxy, gets or loses the LLM's own host."""
        if self._agent.takes_base_url:
            self._open_relay()
            # Around the relay, its provider cannot be reached, nor that of the definition if the run names another one.
            hosts -= {api_address(url)[:2] for url in (self._provider, self._agent.base_url or self._provider)}
        elif self._host in LOOPBACK:
            self.ports = (self._port,)
        else:
            hosts.add((self._host, self._port))
        wants = self._agent.needs_one_of
        if wants and self._run.spec.base_url and not self._settings.keys(wants):
            self.environment[wants[0]] = PLACEHOLDER_KEY

    def _open_relay(self) -> None:
        keys = self._settings.keys((*self._agent.forward_env, *self._agent.needs_one_of))
        stand_ins = {name: f"a2rl-{secrets.token_hex(16)}" for name in keys}
        prices = load_params(self._settings.root).prices
        relay = self.enter_context(RelayProcess(self._run, self._settings, self._provider, keys, stand_ins, prices))
        self.base_url = f"http://127.0.0.1:{relay.port}{self._path}"
        self.ports = (relay.port,)
        self.environment |= stand_ins

    def _open_proxy(self, hosts: list[str]) -> None:
        proxy = self.enter_context(Proxy(hosts, self._run.logs / PROXY_LOG))
        self.ports = (*self.ports, proxy.port)
        self.environment |= dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), proxy.url)
        self.environment |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
