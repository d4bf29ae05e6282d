"""The pages of the shop, without their HTML: lines of text and of what can be clicked, in the order of the original.

Two ways to read one: `simple` is the observation mode `text` of WebShop's text environment
(web_agent_site/envs/web_agent_text_env.py at 64fa2a5), to the letter; `brief` is the form in which ReAct (Yao et al.
2022, WebShop.ipynb) shows them to a model: three products of a page, the instruction once.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from .catalogue import Card, Product

SHOWN = 3
"""Maximum number of products of a page in the brief form."""
BACK_TO_SEARCH, NEXT_PAGE, PREVIOUS_PAGE, BUY_NOW = "Back to Search", "Next >", "< Prev", "Buy Now"
DETAILS = ("Description", "Features", "Reviews")

Kind = Literal["text", "button", "option", "product"]
PageName = Literal["search", "results", "item", "detail", "done"]


class Part(NamedTuple):
    """A piece of a page."""

    text: str
    kind: Kind = "text"
    name: str = ""
    """For the value of an option: the name of the option."""
    marked: bool = False
    """Whether it was clicked before."""


class Page(NamedTuple):
    """What a customer sees."""

    name: PageName
    instruction: str
    lines: Sequence[Sequence[Part]]
    """Below the instruction."""

    def parts(self) -> Iterator[Part]:
        """Yields the parts of all lines."""
        for line in self.lines:
            yield from line

    def clickable(self) -> dict[str, Part]:
        """Returns parts by the text of `click[...]`: buttons, products, options; of equal texts the last one counts."""
        parts = list(self.parts())
        found = {part.text.lower(): part for kind in ("button", "product") for part in parts if part.kind == kind}
        return found | {part.text: part for part in parts if part.kind == "option"}


def search_page(instruction: str) -> Page:
    """Returns the page that a session begins with."""
    return Page("search", instruction, [[_button("Search")]])


def results_page(instruction: str, products: Sequence[Card], page: int, total: int, seen: set[str]) -> Page:
    """Returns a page of search results."""
    turning = [_button(PREVIOUS_PAGE), _button(NEXT_PAGE)] if page > 1 else [_button(NEXT_PAGE)]
    head = [_button(BACK_TO_SEARCH), Part(f"Page {page} (Total results: {total})"), *turning]
    listed = [
        [Part(each.id, "product", marked=each.id in seen), Part(each.title), Part(each.price_tag)] for each in products
    ]
    return Page("results", instruction, [head, *listed])


def item_page(
    instruction: str, product: Product, chosen: Mapping[str, str], keywords: Sequence[str], page: int
) -> Page:
    """Returns the page of a product."""
    # The original looks for a value in quotes in the page's address, which ends in the options chosen so far.
    address = f"{product.id}/{'+'.join(keywords)}/{page}/{json.dumps(dict(chosen))}"
    options = [
        [Part(name), *(Part(value, "option", name, marked=f'"{value}"' in address) for value in values)]
        for name, values in product.options.items()
    ]
    facts = [Part(f"Price: {product.price_tag}"), Part("Rating: N.A.")]
    buttons = [*map(_button, DETAILS), _button(BUY_NOW)]
    return Page("item", instruction, [_way_back(), *options, [Part(product.title)], facts, buttons])


def detail_page(instruction: str, product: Product, detail: str) -> Page:
    """Returns what a button of DETAILS leads to; WebShop has no reviews."""
    texts = {"Description": [product.description], "Features": [f" {bullet}" for bullet in product.bullets]}
    return Page("detail", instruction, [_way_back(), *([Part(text)] for text in texts.get(detail, ()))])


def done_page(reward: float) -> Page:
    """Returns the last page; the original's also has codes for crowd workers."""
    return Page("done", "", [[Part("Thank you for shopping with us!")], [Part(f"Your score: {reward}")]])


def simple(page: Page) -> str:
    """The observation mode `text`."""
    return " [SEP] ".join(part.text.strip() for part in _whole(page))


def brief(page: Page) -> str:
    """Returns a line of text for each line of the page, with brackets around what can be clicked."""
    if page.name == "search":
        return f"Instruction: {page.instruction}\n[Search]"
    lines, products = [], 0
    for line in page.lines:
        products += line[0].kind == "product"
        if line[0].kind != "product" or products <= SHOWN:
            lines.append(" ".join(part.text if part.kind == "text" else f"[{part.text}]" for part in line))
    return "\n".join(lines)


def _whole(page: Page) -> Iterator[Part]:
    """Yields every visible text, including those that all pages begin with."""
    if page.name == "search":
        yield Part("WebShop")
    if page.name != "done":
        yield Part("Instruction: " if page.name == "search" else "Instruction:")
        yield Part(page.instruction)
    for part in page.parts():
        # White space vanishes if it has a line break, else it counts as one space.
        if part.text.strip(" \t\n\f\r"):
            yield part
        elif part.text and "\n" not in part.text:
            yield part._replace(text=" ")


def _way_back() -> list[Part]:
    return [_button(BACK_TO_SEARCH), _button(PREVIOUS_PAGE)]


def _button(text: str) -> Part:
    return Part(text, "button")
