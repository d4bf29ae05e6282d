"""Tests what answers cost: the counts of all four dialects, and prices, with figures that were computed by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from a2rl.agent_systems.definition import Agent, agent_ids, find_agent
from a2rl.config.params import TokenPrices
from a2rl.core.settings import Settings
from a2rl.core.token_use import TokenUse
from a2rl.llm.relay.messages import AnswerReader, tier_of
from a2rl.llm.relay.prices import PriceTable, price_unknown
from tests.run_maker import spec

ANTHROPIC = {
    "input_tokens": 100,
    "cache_creation_input_tokens": 300,
    "cache_read_input_tokens": 600,
    "output_tokens": 50,
}
HOUR = {**ANTHROPIC, "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 100}}
CHAT = {"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 600}}
REASONED = {**CHAT, "completion_tokens_details": {"reasoning_tokens": 30}, "total_tokens": 1050}
BESIDE = {**CHAT, "completion_tokens_details": {"reasoning_tokens": 30}, "total_tokens": 1080}
RESPONSES = {"input_tokens": 1000, "output_tokens": 50, "input_tokens_details": {"cached_tokens": 600}}
GEMINI = {
    "promptTokenCount": 900, "cachedContentTokenCount": 600, "toolUsePromptTokenCount": 100, "candidatesTokenCount": 20,
    "thoughtsTokenCount": 30, "totalTokenCount": 1050,
}  # fmt: skip
COMPACTED = {
    **ANTHROPIC,
    "iterations": [
        {"type": "compaction", "input_tokens": 5000, "cache_read_input_tokens": 400, "output_tokens": 70},
        {"type": "message", **ANTHROPIC},
        *[{"type": "compaction"}] * 2000,
    ],
}
BOTH = {**CHAT, "input_tokens": 1000, "output_tokens": 50}
TRANSLATED = {**CHAT, "cache_creation_input_tokens": 300, "cache_read_input_tokens": 600}


def read(*events: dict[str, Any], stream: bool = False) -> AnswerReader:
    reader = AnswerReader(stream)
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in events) if stream else json.dumps(events[0])
    reader.feed(text.encode())
    reader.close()
    return reader


@pytest.mark.parametrize(
    ("usage", "used"),
    [
        (ANTHROPIC, (1000, 50, 600, 300, 0)),
        (HOUR, (1000, 50, 600, 300, 100)),
        (CHAT, (1000, 50, 600, 0, 0)),
        (REASONED, (1000, 50, 600, 0, 0)),
        (BESIDE, (1000, 80, 600, 0, 0)),
        (RESPONSES, (1000, 50, 600, 0, 0)),
        (BOTH, (1000, 50, 600, 0, 0)),
        (TRANSLATED, (1000, 50, 600, 300, 0)),
        (COMPACTED, (6400, 120, 1000, 300, 0)),
        ({"iterations": [None, 3, {"input_tokens": "9"}]}, (0, 0, 0, 0, 0)),
    ],
)
def test_each_dialect_and_each_mixture_of_them_is_counted_once(usage: dict[str, Any], used: tuple[int, ...]) -> None:
    assert read({"model": "m", "usage": usage}).used == used


def test_both_names_of_the_usage_in_one_reply_count_once() -> None:
    assert read({"usage": CHAT, "usageMetadata": GEMINI}).used == (1000, 50, 600, 0, 0)
    assert read({"usage": {"prompt_tokens": 100, "input_tokens": 100}}).used == (100, 0, 0, 0, 0)


def test_a_stream_tells_its_usage_at_the_beginning_and_the_end() -> None:
    start = {"message": {"model": "claude-sonnet-4-5", "usage": {**HOUR, "output_tokens": 1}}}
    assert read(start, {"usage": {"output_tokens": 50}}, stream=True).used == (1000, 50, 600, 300, 100)
    end = {"usage": {"output_tokens": 50, "iterations": COMPACTED["iterations"]}}
    assert read(start, end, stream=True).used == (6400, 120, 1000, 300, 100)


@pytest.mark.parametrize(
    ("url", "model", "usage", "dollars"),
    [
        # 100 x $3 + 600 x $0.30 + 200 x $3.75 + 100 x $6 + 50 x $15 a million
        ("https://api.anthropic.com", "claude-sonnet-4-5", HOUR, 0.00258),
        # 100 x $5 + 600 x $0.50 + 300 x $6.25 + 50 x $25
        ("https://api.anthropic.com", "claude-opus-4-6", ANTHROPIC, 0.003925),
        # 400 x $1.75 + 600 x $0.175 + 50 x $14
        ("https://api.openai.com/v1", "gpt-5.2", CHAT, 0.001505),
        ("https://api.openai.com/v1", "gpt-5.2", REASONED, 0.001505),
        ("https://api.openai.com/v1", "gpt-5.2", RESPONSES, 0.001505),
        ("https://api.openai.com/v1", "gpt-5.2", BOTH, 0.001505),
        # 400 x $0.30 + 600 x $0.03 + 50 x $2.50
        ("https://generativelanguage.googleapis.com", "gemini-2.5-flash", GEMINI, 0.000263),
        # A long context, at the higher price: 300,000 x $5 + 1,000 x $22.50
        ("https://api.openai.com/v1", "gpt-5.4", {"prompt_tokens": 300_000, "completion_tokens": 1000}, 1.5225),
        # A proxy that nobody knows: the model's name says whose prices count.
        ("http://127.0.0.1:4000", "anthropic/claude-sonnet-4-5", HOUR, 0.00258),
        ("http://127.0.0.1:4000/v1", "gpt-5.2", CHAT, 0.001505),
    ],
)
def test_an_answer_costs_what_the_provider_lists(url: str, model: str, usage: dict[str, Any], dollars: float) -> None:
    used = read({"model": model, "usage": usage}).used
    assert used is not None
    assert PriceTable(url, {}).cost_usd(used, [model]) == pytest.approx(dollars)


def test_the_tier_that_answered_decides_the_price() -> None:
    table, used = PriceTable("https://api.openai.com/v1", {}), TokenUse(1_000_000, 0)
    answered = read({"model": "gpt-5.4", "service_tier": "flex", "usage": CHAT})
    assert answered.tier == {"service_tier": "flex"}
    standard, flex = table.cost_usd(used, ["gpt-5.4"]), table.cost_usd(used, ["gpt-5.4"], answered.tier)
    assert (standard, flex) == (pytest.approx(5.0), pytest.approx(2.5))
    assert tier_of({"service_tier": "auto"}) == {}
    assert tier_of({"speed": "fast", "service_tier": 7}) == {"speed": "fast"}


def test_a_price_that_nobody_knows_is_no_number() -> None:
    for url in ("http://127.0.0.1:8000/v1", "https://api.openai.com/v1"):
        table = PriceTable(url, {})
        assert not any(table.knows(model) for model in ("Qwen/Qwen3-8B", "", "claude-of-my-own", "x" * 100))
        assert table.cost_usd(TokenUse(1, 1), ["Qwen/Qwen3-8B"]) is None
    assert not PriceTable("https://api.openai.com/v1", {}).knows("dall-e-3")  # it charges for something else


def test_a_model_that_answers_in_pictures_or_sounds_has_no_price() -> None:
    used = TokenUse(100, 1120)
    for url, model in (
        ("https://generativelanguage.googleapis.com", "gemini-3-pro-image"),
        ("https://generativelanguage.googleapis.com", "gemini-omni-1.1-flash"),
        ("http://127.0.0.1:4000/v1", "gemini/gemini-2.5-flash-image"),
        ("https://api.openai.com/v1", "gpt-audio"),
    ):
        assert PriceTable(url, {}).cost_usd(used, [model]) is None
    own = PriceTable("https://api.openai.com/v1", {"gpt-audio": TokenPrices(input=32, output=64)})
    assert own.cost_usd(used, ["gpt-audio"]) == pytest.approx(0.07488)


def test_prices_of_ones_own_come_first() -> None:
    own = {"mine": TokenPrices(input=1, output=2, cache_read=0.5), "gpt-5.2": TokenPrices(input=0, output=0)}
    table = PriceTable("http://127.0.0.1:8000/v1", own)
    assert table.cost_usd(TokenUse(1000, 100, 400, 100, 50), ["mine"]) == pytest.approx(0.001)
    for url in ("http://127.0.0.1:8000/v1", "https://api.openai.com/v1"):
        assert PriceTable(url, own).cost_usd(TokenUse(1000, 100), ["gpt-5.2-2025-12-11", "gpt-5.2"]) == 0


def test_counts_that_contradict_each_other_still_have_a_price() -> None:
    table = PriceTable("https://api.anthropic.com", {})
    assert table.cost_usd(TokenUse(10, 0, 1000, 1000, 1000), ["claude-sonnet-4-5"]) == pytest.approx(10 * 0.3e-6)


def test_no_host_is_asked_for_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a price was asked for"))
    assert PriceTable("https://api.anthropic.com", {}).knows("claude-opus-4-6")


def test_the_price_of_every_shipped_driver_is_known(settings: Settings) -> None:
    agents = [find_agent(name, settings.root) for name in agent_ids(settings.root)]
    driven = [agent for agent in agents if agent.calls_llm]
    assert len(driven) >= 7
    for agent in driven:
        assert price_unknown(spec(agent=agent.id, driver=agent.driver), agent, settings) == ""


def test_an_agent_without_an_llm_needs_no_price(settings: Settings) -> None:
    agent = Agent(id="a", title="a", start=("true",), folder=Path())
    assert price_unknown(spec(), agent, settings) == ""
