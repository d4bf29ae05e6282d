"""An expert that decides from what a customer sees: the pages, and the instruction on them.

Contract: it never looks at a goal or at a product's hidden fields, and of a page of results only at the products that
the brief form shows, so that whatever it does can be learned from a transcript. It searches for the words of the
instruction, opens the first product whose title and price fit, goes back if an option is unavailable, chooses the
options and buys. If nothing fits on the first pages, it searches again and takes the first product that is cheap
enough. It understands the wording of synthetic goals.

    session, expert = Session(shop, goal), Expert()
    while not session.done:
        session.step(expert.act(session.page))
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from .page import BACK_TO_SEARCH, BUY_NOW, NEXT_PAGE, PREVIOUS_PAGE, SHOWN, Page
from .session import Session, Step

MAX_STEPS = 20
LAST_PAGE = 2

_PRICE = re.compile(r",? and price lower than ([\d.]+) dollars$")
_OPTIONS = re.compile(r" with ((?:(?! with )[^:,])+: .*)$")
_OPTION = re.compile(r"([^:]+): (.*?)(?:, and (?=[^:,]+: )|$)")
_FILLERS = frozenset(("find", "me", "with", "and"))
_WORD = re.compile(r"[^\s,]+")
_PLURALS = (("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"))


class Wanted(NamedTuple):
    """What an instruction asks for."""

    words: list[str]
    """Words of the kind and of the attributes."""
    options: dict[str, str]
    limit: float


class Turn(NamedTuple):
    """An action and the shop's answer."""

    action: str
    step: Step


def read_instruction(instruction: str) -> Wanted:
    """Parses an instruction."""
    limit = float(found[1]) if (found := _PRICE.search(instruction)) else float("inf")
    text = _PRICE.sub("", instruction)
    options = dict(_OPTION.findall(found[1])) if (found := _OPTIONS.search(text)) else {}
    words = [word.lower() for word in _WORD.findall(_OPTIONS.sub("", text))]
    return Wanted([word for word in words if word not in _FILLERS], options, limit)


class Expert:
    """Plays sessions one after the other: a search page with another instruction begins a new one."""

    def __init__(self) -> None:
        self._instruction: str | None = None

    def act(self, page: Page) -> str:
        """Returns the action for the open page."""
        if page.instruction != self._instruction:
            self._instruction, self._wanted = page.instruction, read_instruction(page.instruction)
            self._opened: list[str] = []
            self._turned = 0
        match page.name:
            case "search":
                return f"search[{' '.join([*self._wanted.words, *self._wanted.options.values()])}]"
            case "results":
                return self._pick(page)
            case "item":
                return self._decide(page)
        return f"click[{PREVIOUS_PAGE}]"

    def _pick(self, page: Page) -> str:
        offered = [each for each in _offers(page) if each.id not in self._opened and each.price <= self._wanted.limit]
        fitting = [each for each in offered if self._suits(each)]
        if self._turned > LAST_PAGE:
            fitting = fitting or offered or list(_offers(page))
        if fitting:
            self._opened.append(fitting[0].id)
            return f"click[{fitting[0].id}]"
        self._turned += 1
        return f"click[{NEXT_PAGE if self._turned <= LAST_PAGE else BACK_TO_SEARCH}]"

    def _decide(self, page: Page) -> str:
        clickable = page.clickable()
        wanted = list(self._wanted.options.values())
        lacks = not self._suits(_opened(page)) or any(value not in clickable for value in wanted)
        if self._turned <= LAST_PAGE and lacks:
            return f"click[{PREVIOUS_PAGE}]"
        left = [value for value in wanted if value in clickable and not clickable[value].marked]
        return f"click[{left[0] if left else BUY_NOW}]"

    def _suits(self, offer: "_Offer") -> bool:
        named = all(_names(word, offer.title) for word in self._wanted.words)
        return named and offer.price <= self._wanted.limit


class _Offer(NamedTuple):
    id: str
    title: str
    price: float


def _offers(page: Page) -> Iterator[_Offer]:
    """The products that the brief form of a page shows."""
    products = [line for line in page.lines if line[0].kind == "product"]
    for name, title, price in products[:SHOWN]:
        yield _Offer(name.text, title.text.lower(), _price(price.text))


def _opened(page: Page) -> _Offer:
    """The product of an item page, whose last three lines are its title, its price and the buttons."""
    (title,), (price, *_), _ = page.lines[-3:]
    return _Offer("", title.text.lower(), _price(price.text.removeprefix("Price: ")))


def _price(tag: str) -> float:
    """The highest of a price tag such as "$5.0 to $7.5"."""
    return float(tag.rpartition(" to ")[-1].removeprefix("$"))


def _names(word: str, title: str) -> bool:
    """Whether a title has a word, or its singular."""
    return word in title or any(word.endswith(end) and word.removesuffix(end) + one in title for end, one in _PLURALS)


def play_out(session: Session, expert: Expert, max_steps: int = MAX_STEPS) -> list[Turn]:
    """Plays a new session to its end, and returns the turns."""
    turns: list[Turn] = []
    while not session.done and len(turns) < max_steps:
        action = expert.act(session.page)
        turns.append(Turn(action, session.step(action)))
    return turns
