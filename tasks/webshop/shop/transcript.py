r"""How a visit reads for a model, in one of two forms.

`whole`: one text that grows, in the manner of ReAct (Yao et al. 2022, WebShop.ipynb), over sessions in mode "brief". A
prompt is `opening(observation)` and one `turn` for each action so far; it ends with ">", after which the model goes on
with a space, the action and a newline. So the text of a whole visit is what to learn from:

    Instruction: find me slim fit shirts with color: red, and price lower than 40.00 dollars
    [Search]
    > search[slim fit shirts red]
    [Back to Search] Page 1 (Total results: 50) [Next >]
    [B0421] Nova slim fit shirt $12.5
    ...

`window`: each turn a prompt of its own with the instruction, the available actions and the last five turns, over
sessions in mode "text", as the reference shows it (autorl_bench/benchmarks/webshop/eval.py); the wording is ours. Its
oddity is kept: beside an action stands what came of it, so that the page it was taken on is not shown, and the page
that is open now stands there twice.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from .catalogue import Shop
from .product import Goal
from .session import Available, Session, Step

Form = Literal["whole", "window"]
WINDOW = 5
"""Turns that a prompt looks back."""
SYSTEM = (
    "You shop for a customer in an online store. You are given the customer's instruction, what the page shows and the"
    " actions that it offers. Answer with the one action that brings you closer to buying what is asked for, such as"
    " search[red shoes] or click[buy now], and with nothing else."
)
_PROMPT = "\n>"


def opening(observation: str) -> str:
    """The prompt for the first action."""
    return observation + _PROMPT


def turn(action: str, observation: str) -> str:
    """What an action and its answer add to the prompt."""
    return f" {action}\n{observation}{_PROMPT}"


def transcript(observation: str, turns: Iterable[tuple[str, Step]]) -> str:
    """The text of a visit, from its first observation on; a purchase ends it with its action."""
    text = opening(observation)
    for action, step in turns:
        text += f" {action}\n" if step.done else turn(action, step.observation)
    return text.removesuffix(_PROMPT)


class Past(NamedTuple):
    """A turn of the past."""

    action: str
    observation: str


def window(instruction: str, past: Sequence[Past], observation: str, available: Available) -> str:
    """The prompt for the next action."""
    actions = ["search[<your words>]"] if available.has_search_bar else []
    actions += [f"click[{name}]" for name in available.clickables]
    lines = [
        "You are in an online store. Find and buy what the instruction asks for.",
        f"\nInstruction: {instruction}",
        "\nAvailable actions:",
        *(f"  {action}" for action in actions),
        "\nRules:",
        "- Answer with one of the available actions, and with nothing else.",
        "- To search, write search[your words].",
        "- To click, write click[the text as it stands in the list].",
        "\nIt is your turn.",
    ]
    first = max(0, len(past) - WINDOW)
    for number, each in enumerate(past[first:], start=first + 1):
        lines.append(f"\nObservation {number}: {each.observation}\nAction {number}: {each.action}")
    lines.append(f"\nObservation {len(past) + 1}: {observation}\nAction {len(past) + 1}:")
    return "\n".join(lines)


def read_action(text: str) -> str:
    """The action in what a model wrote, with the reference's two mercies: a leading "Action:", and choose for click."""
    action = text.strip().removeprefix("Action:").strip()
    return "click[" + action.removeprefix("choose[") if action.startswith("choose[") else action


class Visit:
    """A session as a model meets it: `prompt` is what it is to continue, up to the end of the line."""

    def __init__(self, shop: Shop, goal: Goal, form: Form) -> None:
        self.form = form
        self.session = Session(shop, goal, "brief" if form == "whole" else "text")
        self.actions: list[str] = []
        self.invalid = 0
        self._past: list[Past] = []
        self._text = opening(self.session.observation)

    @property
    def prompt(self) -> str:
        if self.form == "whole":
            return self._text
        session = self.session
        return window(session.goal.instruction, self._past, session.observation, session.available())

    @property
    def done(self) -> bool:
        return self.session.done

    @property
    def reward(self) -> float:
        """Of the purchase; 0 before it."""
        return self.session.reward.total if self.session.reward else 0.0

    def write(self, line: str) -> str:
        """Carries out what the model wrote; what the next prompt says after that line, in the form `whole`."""
        action = read_action(line)
        step = self.session.step(action)
        self.actions.append(action)
        self.invalid += not step.valid
        self._past.append(Past(action, step.observation))
        self._text += turn(action, step.observation)
        return "" if step.done else step.observation + _PROMPT
