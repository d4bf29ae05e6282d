r"""The text of a visit for a model, in one of two forms.

`whole`: one growing text, as in ReAct (Yao et al. 2022, WebShop.ipynb), over sessions in mode "brief". A
prompt is `opening(observation)` and one `turn` for each action so far; it ends with ">", after which the model goes on
with a space, the action and a newline. So a model can learn from the text of a whole visit:

    Instruction: find me slim fit shirts with color: red, and price lower than 40.00 dollars
    [Search]
    > search[slim fit shirts red]
    [Back to Search] Page 1 (Total results: 50) [Next >]
    [B0421] Nova slim fit shirt $12.5
    ...

`window`: a new prompt for each turn with the instruction, the available actions and the last five turns, over sessions
in mode "text", as in the reference (autorl_bench/benchmarks/webshop/eval.py); the wording is ours. A peculiarity of the
reference is kept: an action is shown with the page that it led to instead of the page that it was taken on, so the open
page is shown twice.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from a2rl.core.model_text import without_thoughts

from .catalogue import Goal, Shop
from .session import Available, Session, Step

Form = Literal["whole", "window"]
WINDOW = 5
"""Number of earlier turns in a prompt."""
LONGEST_LINE = 1000
"""Maximum number of characters of a line in which an action is looked for."""
SYSTEM = (
    "You shop for a customer in an online store. You are given the customer's instruction, what the page shows and the"
    " actions that it offers. Answer with the one action that brings you closer to buying what is asked for, such as"
    " search[red shoes] or click[buy now], and with nothing else."
)
_PROMPT = "\n>"


def opening(observation: str) -> str:
    """Returns the prompt for the first action."""
    return observation + _PROMPT


def turn(action: str, observation: str) -> str:
    """Returns what an action and its answer add to the prompt."""
    return f" {action}\n{observation}{_PROMPT}"


def transcript(observation: str, turns: Iterable[tuple[str, Step]]) -> str:
    """Returns the text of a visit from its first observation; with a purchase it ends with that action."""
    text = opening(observation)
    for action, step in turns:
        text += f" {action}\n" if step.done else turn(action, step.observation)
    return text.removesuffix(_PROMPT)


class Past(NamedTuple):
    """An earlier turn."""

    action: str
    observation: str


def window(instruction: str, past: Sequence[Past], observation: str, available: Available) -> str:
    """Returns the prompt for the next action."""
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
    """Returns the action in a line of a model, as a person reads it.

    A sentence, "Action:" or ">" before it, and quotation marks and the like around it do not count, if the line ends
    with its only action. Small and capital letters are the same. Any other line is read as by the reference, also one
    that ends with a parenthesis, because that may be an aside, such as "(e.g. click[x])".
    """
    text = _SPECIAL.sub("", without_thoughts(text))
    if len(text) <= LONGEST_LINE and (found := _ONLY_ACTION.fullmatch(text)):
        verb, argument = found["verb"].lower(), found["argument"].strip()
        if argument[:1] == argument[-1:] and argument[:1] in ("'", '"', "`") and len(argument) > 2:
            argument = argument[1:-1]
        return f"{'click' if verb == 'choose' else verb}[{argument}]"
    return reference_action(text)


def reference_action(text: str) -> str:
    """Returns the action as the reference reads it: it accepts a leading "Action:", and choose for click."""
    action = text.strip().removeprefix("Action:").strip()
    return "click[" + action.removeprefix("choose[") if action.startswith("choose[") else action


_SPECIAL = re.compile(r"<\|\w{1,40}\|>")
_ONLY_ACTION = re.compile(
    r"(?:[^\[\]]*[.!?:>])?[^\w\[\]]*+(?P<verb>search|click|choose) ?\[(?P<argument>[^\[\]]+)\][\s.!`\"'*_]*",
    re.IGNORECASE,
)
REFERENCE_SYSTEM = (
    "You are a helpful shopping assistant browsing an e-commerce website. "
    "Given a user instruction, current observation, and available actions, "
    "pick the best action to find and purchase a matching product. "
    "Output ONLY one action (e.g., 'search[red shoes]', 'click[buy now]') "
    "with NO extra text, NO explanation."
)
"""The reference's wording, for the option `prompts: faithful`."""
_REFERENCE_OPENING = """\
You are shopping on an e-commerce website. Find and purchase a product matching the user's instruction.

Instruction: {instruction}

Available actions:
{actions}

Rules:
- Output ONLY one action from the available actions list above.
- For search, use: search[your query]
- For clicking, use: click[exact text from the list]
- Do NOT output anything other than the action.

Now it's your turn:
"""


def reference_window(instruction: str, past: Sequence[Past], observation: str, available: Available) -> str:
    """Returns the prompt for the next action in the reference's wording."""
    actions = ["  search[<your query>]"] if available.has_search_bar else []
    actions += [f"  click[{name}]" for name in available.clickables]
    text = _REFERENCE_OPENING.replace("{actions}", "\n".join(actions)).replace("{instruction}", instruction)
    first = max(0, len(past) - WINDOW)
    for number, each in enumerate(past[first:], start=first + 1):
        text += f"\nObservation {number}: {each.observation}\nAction {number}: {each.action}\n"
    return text + f"\nObservation {len(past) + 1}: {observation}\nAction {len(past) + 1}:"


def asked(visit: "Visit", chat: bool, system: str = SYSTEM) -> str | list[dict[str, str]]:
    """Returns the prompt for the next action: a text, or in the form `window` a chat if the model has a template."""
    if visit.form == "whole":
        return visit.prompt
    if not chat:
        return f"{system}\n\n{visit.prompt}"
    return [{"role": "system", "content": system}, {"role": "user", "content": visit.prompt}]


class Visit:
    """A session for a model, which continues `prompt` up to the end of the line."""

    def __init__(self, shop: Shop, goal: Goal, form: Form, faithful: bool = False) -> None:
        self.form, self._window = form, reference_window if faithful else window
        self._read = reference_action if faithful else read_action
        self.session = Session(shop, goal, "brief" if form == "whole" else "text")
        self.actions: list[str] = []
        self.invalid = 0
        self._past: list[Past] = []
        self._text = opening(self.session.observation)

    @property
    def prompt(self) -> str:
        """The text that the model continues."""
        if self.form == "whole":
            return self._text
        session = self.session
        return self._window(session.goal.instruction, self._past, session.observation, session.available())

    @property
    def done(self) -> bool:
        """Whether something was bought."""
        return self.session.done

    @property
    def reward(self) -> float:
        """The reward of the purchase; 0 before it."""
        return self.session.reward or 0.0

    def write(self, line: str) -> str:
        """Carries out a line of the model; returns what the next prompt of the form `whole` has after that line."""
        action = self._read(line)
        step = self.session.step(action)
        self.actions.append(action)
        self.invalid += not step.valid
        self._past.append(Past(action, step.observation))
        self._text += turn(action, step.observation)
        return "" if step.done else step.observation + _PROMPT
