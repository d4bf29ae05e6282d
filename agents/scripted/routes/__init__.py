"""How each task is learned: what SFT imitates, what the model plays, and what is rewarded. A task without a
module `routes.<task>` of its own is learned by `routes.rows`."""

import importlib
import importlib.util
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Part(NamedTuple):
    """A piece of a text that SFT reads, and whether it learns to write it."""

    text: str
    learn: bool


@dataclass
class Example:
    """What SFT imitates: the prompt as the grader asks it, and what follows."""

    prompt: Any
    """A text, or a chat."""
    parts: list[Part]


@dataclass
class Setting:
    """What a route needs to know of the run: the data, the model's tokenizer, and how the grader asks."""

    data: Path
    tokenizer: Any
    context: int
    """The most tokens that the model can read."""
    meta: Mapping[str, Any]
    """run_meta.json."""
    small: bool
    """Whether the model is very small."""

    @property
    def chat(self) -> bool:
        """Whether the grader asks in a chat."""
        return bool(self.tokenizer.chat_template)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.meta["seed"])

    def tokens(self, prompt: Any) -> list[int]:
        """Returns the tokens of a prompt, as the grader has them."""
        from decoder import prompt_tokens

        return prompt_tokens(self.tokenizer, prompt, self.meta["chat_template_kwargs"])

    def room_after(self, prompt: Any) -> int:
        """Returns how many tokens of the model's context a prompt leaves free."""
        return self.context - len(self.tokens(prompt))


class BaseRoute:
    """How a task is learned; the `Route` of `routes.<task>` derives from it."""

    names: list[str]
    """The training items, in random order."""
    sft_share: float = 0.5
    """SFT's share of a long budget for a small model; reinforcement gets the rest."""
    play_settings: dict[str, Any]
    """Arguments of `episodes.play`, such as where the model's turns end. Limits on turns and tokens are the grader's,
    unless these name others."""
    with_examples: float = 1.0
    """Share of the texts in training that begin with the examples that the grader shows, if it shows any."""
    can_play: bool = True
    """Whether there are environments to play in; otherwise the model only imitates."""

    def shows_examples(self, name: str) -> bool:
        """Whether the model meets an item in training as it is graded, with the examples before it."""
        return random.Random(name).random() < self.with_examples

    def example(self, name: str) -> Example | None:
        """Returns what SFT imitates for an item; None if there is nothing."""
        raise NotImplementedError

    def environment(self, name: str) -> Any:
        """Returns an item as an environment to play in; see `Environment` in data/episodes.py."""
        raise NotImplementedError

    def plain(self, name: str) -> Any:
        """Returns an item without the examples that the grader shows."""
        return self.environment(name)

    def practice(self, name: str) -> Any:
        """Returns an item as an environment for reinforcement."""
        return self.environment(name)

    def kind(self, name: str) -> str:
        """Returns the kind of an item; items of a kind are about equally difficult."""
        return ""


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Reads a *.jsonl file. Texts may contain what `str.splitlines` takes for the end of a line."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def load_route(task: str, setting: Setting) -> BaseRoute:
    """Returns the route of a task. The modules in the data folder can be imported from here on."""
    if str(setting.data) not in sys.path:
        sys.path.insert(0, str(setting.data))
    name = task if importlib.util.find_spec(f"routes.{task}") else "rows"
    if name == "rows" and not (setting.data / "items.py").is_file():
        raise SystemExit(f"nothing here says how {task} is learned: add routes/{task}.py, or hand out an items.py")
    route: BaseRoute = importlib.import_module(f"routes.{name}").Route(setting)
    return route
