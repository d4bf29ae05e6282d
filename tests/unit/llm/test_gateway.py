"""Tests what an agent gets of the way to its LLM: stand-ins for its keys, and which hosts it may reach."""

from pathlib import Path

import httpx
import pytest

from a2rl.agent_systems.definition import Agent
from a2rl.core.settings import Settings
from a2rl.llm.gateway import Gateway
from a2rl.llm.keys import PLACEHOLDER_KEY
from a2rl.run.directory import RunDir
from tests.run_maker import spec

KEY = "pk-real-key-of-the-provider"


def agent(**changes: object) -> Agent:
    values = {"id": "mine", "title": "t", "start": ("true",), "folder": Path(), "env": {"API": "{base_url}"}}
    return Agent.model_validate({**values, "base_url": "http://own.invalid", **changes})


@pytest.mark.parametrize("needs", [(), ("MY_KEY",)])
def test_an_agent_with_a_relay_has_no_real_key(needs: tuple[str, ...], settings: Settings, run: RunDir) -> None:
    settings.environ["MY_KEY"] = KEY
    with Gateway(run, agent(forward_env=("MY_KEY",), needs_one_of=needs), settings) as gateway:
        assert gateway.environment["MY_KEY"].startswith("a2rl-")


def test_an_empty_key_has_no_stand_in(settings: Settings) -> None:
    needs = ("MY_KEY", "MY_TOKEN")
    settings.environ.update(MY_KEY=" ", MY_TOKEN=KEY)
    run = RunDir.create(settings.runs, spec(base_url="http://other.invalid"))
    with Gateway(run, agent(forward_env=needs, needs_one_of=needs), settings) as gateway:
        assert {*needs} & gateway.environment.keys() == {"MY_TOKEN"}
    settings.environ["MY_TOKEN"] = ""
    with Gateway(run, agent(forward_env=needs, needs_one_of=needs), settings) as gateway:
        assert {name: gateway.environment.get(name) for name in needs} == {"MY_KEY": PLACEHOLDER_KEY, "MY_TOKEN": None}


@pytest.mark.parametrize("url", [None, "http://other.invalid"])
def test_its_providers_are_reached_through_the_relay_only(url: str | None, settings: Settings) -> None:
    run = RunDir.create(settings.runs, spec(base_url=url, hosts="mirror.invalid:80"))
    with Gateway(run, agent(hosts=("own.invalid:80",)), settings) as gateway:
        answers = [
            httpx.get(address, proxy=gateway.environment["HTTP_PROXY"], trust_env=False).status_code
            for address in ("http://own.invalid/", "http://mirror.invalid/")
        ]
    assert answers == [403, 502]
