"""A customer's visit: takes actions and returns pages, until a purchase, by the rules of WebShop's text environment
(web_agent_site/envs/web_agent_text_env.py at 64fa2a5), without a server.

    session = Session(shop, goal)
    session.step("search[red cotton shirt]")
    session.step("click[B0042]")
    step = session.step("click[Buy Now]")       # step.done, step.reward

An invalid action, or one that the page does not offer, does nothing. A search works on every page. Unlike in the
original, the search words <r>, <a>, <c> and <q>, which are for debugging and mostly crash, are plain words, and a
purchase ends the visit.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from .catalogue import Goal, Product, Shop
from .page import (
    BACK_TO_SEARCH,
    BUY_NOW,
    DETAILS,
    NEXT_PAGE,
    PREVIOUS_PAGE,
    Page,
    Part,
    brief,
    detail_page,
    done_page,
    item_page,
    results_page,
    search_page,
    simple,
)
from .reward import reward

LONGEST_QUERY = 500
"""Characters of a query that are searched for."""

Mode = Literal["text", "brief"]
READERS: Mapping[Mode, Callable[[Page], str]] = MappingProxyType({"text": simple, "brief": brief})


class Step(NamedTuple):
    """The result of an action."""

    observation: str
    reward: float
    """0 except for the purchase."""
    done: bool
    valid: bool
    """Whether the action had an effect."""


class Available(NamedTuple):
    """What can be done on a page."""

    has_search_bar: bool
    clickables: list[str]


class Session:
    """One visit with one goal; `mode` is the form of observations, see page.py."""

    def __init__(self, shop: Shop, goal: Goal, mode: Mode = "text") -> None:
        self.shop, self.goal, self.mode = shop, goal, mode
        self.reward: float | None = None
        """Reward of the purchase."""
        self._keywords: list[str]
        self._number: int
        """Number of the page of results."""
        self._product: Product | None
        self._listed: dict[str, int]
        """The numbers of the products on the page of results, by id."""
        self._options: dict[str, str]
        self._seen: set[str]
        self._brief_answer: str
        """In the brief form, what is shown instead of a page on which only a mark has changed."""
        self.page: Page
        self._start()

    @property
    def done(self) -> bool:
        """Whether something was bought."""
        return self.reward is not None

    @property
    def observation(self) -> str:
        """The open page as text."""
        return READERS[self.mode](self.page)

    def available(self) -> Available:
        """Returns what can be done on the open page."""
        return Available(self.page.name == "search", list(self.page.clickable()))

    def step(self, action: str) -> Step:
        """Carries out an action, such as `search[red shirt]` or `click[Buy Now]`."""
        valid = not self.done and self._act(action)
        observation = self._brief_answer if self.mode == "brief" and self._brief_answer else self.observation
        if not valid and self.mode == "brief":
            observation = "Invalid action!"
        return Step(observation, (self.reward or 0.0) if valid else 0.0, self.done, valid)

    def _act(self, action: str) -> bool:
        verb, argument = _read(action)
        self._brief_answer = ""
        if verb == "search" and argument:
            self._keywords, self._number = argument[:LONGEST_QUERY].split(" "), 1
            self._show_results()
            return True
        part = self.page.clickable().get(argument)
        if verb != "click" or part is None or argument == "search":
            return False
        self._click(argument, part)
        return True

    def _click(self, argument: str, part: Part) -> None:
        """Clicks a part. Names of buttons take precedence: an option called "description" opens the description."""
        if argument == BUY_NOW.lower():
            self._buy()
        elif argument == BACK_TO_SEARCH.lower():
            self._start()
        elif argument == NEXT_PAGE.lower() and self.page.name == "results":
            self._number += 1
            self._show_results()
        elif argument == PREVIOUS_PAGE.lower() and self.page.name in ("results", "item"):
            self._number -= self.page.name == "results"
            self._show_results()
        elif argument in (detail.lower() for detail in DETAILS):
            self.page = detail_page(self.goal.instruction, self._at(), argument.capitalize())
        else:
            self._show_item(part)

    def _start(self) -> None:
        self._keywords, self._number = [], 1
        self._product, self._listed, self._options, self._seen = None, {}, {}, set()
        self._brief_answer = ""
        self.page = search_page(self.goal.instruction)

    def _show_results(self) -> None:
        hits, total = self.shop.results(" ".join(self._keywords), self._number)
        cards = [self.shop.card(hit.number) for hit in hits]
        self._listed = {hit.id: hit.number for hit in hits}
        self._product, self._options = None, {}
        self.page = results_page(self.goal.instruction, cards, self._number, total, self._seen)

    def _show_item(self, part: Part) -> None:
        if part.kind == "product":
            self._product = self.shop.product(self._listed[part.text])
            self._seen.add(part.text)
        elif part.kind == "option":
            self._options[part.name] = part.text
            self._brief_answer = f"You have clicked {part.text}."
        self.page = item_page(self.goal.instruction, self._at(), self._options, self._keywords, self._number)

    def _buy(self) -> None:
        self.reward = reward(self._at(), self.goal, self._options)
        self.page = done_page(self.reward)

    def _at(self) -> Product:
        assert self._product is not None, "only the pages of a product lead here"
        return self._product


def _read(action: str) -> tuple[str, str]:
    """Returns the verb of an action and what stands in its last brackets, in lower case."""
    line = action.partition("\n")[0]
    end = line.rfind("]")
    begin = line.rfind("[", 1, end - 1) if end > 2 else -1
    return (line[:begin], line[begin + 1 : end].lower()) if begin > 0 else (action, "")
