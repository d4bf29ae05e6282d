"""What the tokens of an LLM cost, at list prices.

The prices are those of the package genai-prices, which has them in its own files and asks nobody for them; `prices` in
params.yaml adds models and overrides the package. The host of the API decides whose prices count. For a host that the
package does not know, such as a proxy or `a2rl driver`, they are those of the model's maker, found by the model's name.

    table = PriceTable("https://api.anthropic.com", {})
    table.cost_usd(TokenUse(prompt_tokens=1000, completion_tokens=50), ["claude-opus-4-6"])    # 0.00625
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from a2rl.agent_systems.definition import Agent
from a2rl.config.params import TokenPrices, load_params
from a2rl.core.settings import Settings
from a2rl.core.token_use import TokenUse
from a2rl.run.spec import RunSpec

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice

ADD_PRICE = "add the model to `prices` in params.yaml"
NO_TIER: Mapping[str, str] = {}


class PriceTable:
    """The prices of one API.

    Args:
        own: The prices of params.yaml, by model.
    """

    def __init__(self, base_url: str, own: Mapping[str, TokenPrices]) -> None:
        # Half a second, which only processes that need a price take.
        from genai_prices.data_snapshot import get_snapshot

        self._own, self._table = own, get_snapshot()
        self._base_url: str | None = base_url
        try:
            self._table.find_provider(None, None, base_url)
        except LookupError:
            self._base_url = None

    def knows(self, model: str) -> bool:
        """Says whether a model has a price."""
        return self._price([model], NO_TIER) is not None

    def cost_usd(self, used: TokenUse, models: Sequence[str], tier: Mapping[str, str] = NO_TIER) -> float | None:
        """Returns what an answer cost; None if the price is unknown.

        Args:
            models: The names of the model that answered; the first one with a price counts, and those of params.yaml
                come first.
            tier: The tier of the service, by the names of genai-prices.
        """
        from genai_prices import Usage

        if (price := self._price(models, tier)) is None:
            return None
        read = min(used.cache_read_tokens, used.prompt_tokens)
        written = min(used.cache_write_tokens, used.prompt_tokens - read)
        usage = Usage(
            input_tokens=used.prompt_tokens,
            output_tokens=used.completion_tokens,
            cache_read_tokens=read,
            cache_write_tokens=written,
            cache_write_1h_tokens=min(used.cache_write_1h_tokens, written),
        )
        return float(price.calc_price(usage)["total_price"])

    def _price(self, models: Sequence[str], tier: Mapping[str, str]) -> "ModelPrice | None":
        found = (*map(self._own_price, models), *(self._listed(model, tier) for model in models))
        return next((price for price in found if price is not None), None)

    def _own_price(self, model: str) -> "ModelPrice | None":
        from genai_prices.types import ModelPrice

        if (own := self._own.get(model)) is None:
            return None
        known = {"cache_write": own.input, **own.model_dump(exclude_none=True)}
        return ModelPrice(**{f"{name}_mtok": Decimal(str(dollars)) for name, dollars in known.items()})

    def _listed(self, model: str, tier: Mapping[str, str]) -> "ModelPrice | None":
        by_name = None if self._base_url else "litellm"  # which also reads names such as openai/gpt-5.2
        try:
            _, found = self._table.find_provider_model(model, None, by_name, self._base_url)
        except LookupError:
            return None
        price = found.get_prices(datetime.now(UTC), tier)
        # What a model without a price for tokens charges for is something else, such as pictures or minutes. One that
        # also answers in pictures or sounds has several prices for tokens, and a count does not say whose they are.
        others = (price.output_image_mtok, price.output_audio_mtok, price.output_video_mtok)
        return None if None in (price.input_mtok, price.output_mtok) or any(others) else price


def price_unknown(spec: RunSpec, agent: Agent, settings: Settings) -> str:
    """Says that the price of a run's driver is unknown; empty if it is known, or if no LLM drives the agent."""
    url, driver = spec.base_url or agent.base_url, spec.driver or ""
    if url is None or PriceTable(url, load_params(settings.root).prices).knows(driver):
        return ""
    return f"the price of {driver or 'the driver'} at {url} is unknown, so its cost cannot be counted"
