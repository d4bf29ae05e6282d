r"""The text of a game for a model: the zero-shot form of ReAct (Yao et al. 2022, arXiv 2210.03629; alfworld.ipynb).

Contract: a prompt is `opening(intro)` and one `turn` for each command so far. It ends with ">", after which the model
goes on with a space, the command and a newline. So a model can learn from `transcript`, the text of a whole game:

    You are in the middle of a room. Looking quickly around you, you see a desk 1, and a shelf 1.
    Your task is to: put a mug in desk.
    > go to shelf 1
    You arrive at shelf 1. On the shelf 1, you see a mug 1.

`GameEnvironment` is a game that a model plays while it is trained: the rollouts of online RL.

    from alfred import Game
    from alfred.transcript import GameEnvironment
    from episodes import for_trl, play

    games = [Game.load(path) for path in sorted(Path("data/train").rglob("game.tw-pddl"))]
    episodes = play(model, tokenizer, [GameEnvironment(game) for game in games], max_steps=30, temperature=1.0)
    print(sum(episode.reward for episode in episodes) / len(episodes))
    rollout_func = for_trl(lambda number: GameEnvironment(games[int(number)]), max_steps=30, temperature=1.0)
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from a2rl.core.model_text import answer_of

from .game import Game
from .play import NOTHING_HAPPENS, Play

Examples = Mapping[str, Sequence[str]]
"""The texts of won games by kind of game."""
TOKENS_OF_INTRO, TOKENS_PER_STEP = 300, 40
"""Upper estimates for an intro, and for a command with its answer; the examples must leave room for them."""

THOUGHT = "think:"
LONGEST_LINE = 1000
"""Maximum number of characters of a line in which a command is looked for."""
_PROMPT = "\n>"
_THOUGHT = re.compile(r"\W*(?:think|thought):\s*", re.IGNORECASE)
_COMMAND = re.compile(
    r"(?:.*(?:[.!?>]|\b(?:action|command) ?\d*:))?\W*+"
    r"((?:go|look|inventory|help|examine|open|close|take|move|heat|cool|clean|use|slice)\b.*?)\W*",
    re.IGNORECASE,
)


def read_command(line: str) -> str:
    """Returns the command in a line of a model, as a person reads it.

    A sentence, "Action:" or ">" before it, quotation marks and other marks around it, a full stop and capital letters
    do not count. A line that begins with `think:` or `Thought:` is a thought, unless "Action:" follows in it.
    """
    line = answer_of(line).strip().partition("\n")[0]  # a turn may contain line breaks of other kinds
    thought = _THOUGHT.match(line)
    if thought and not re.search(r"\b(?:action|command) ?\d*:", line, re.IGNORECASE):
        return f"{THOUGHT} {line[thought.end() :]}"
    command = _COMMAND.fullmatch(line) if len(line) <= LONGEST_LINE else None
    return command[1].lower() if command else line


def framed(examples: Sequence[str]) -> str:
    """Returns the text before a game, in the reference's words (eval.py); empty if there are no examples."""
    if not examples:
        return ""
    return (
        "Interact with a household to solve a task. Here are two examples.\n"
        + "".join(examples)
        + "\nHere is the task.\n"
    )


def examples_that_fit(examples: Examples, room_after: Callable[[str], int], max_steps: int) -> Examples:
    """Returns as many examples for each kind of game as fit into the model's context with a whole game.

    Args:
        examples: All of them.
        room_after: Returns how many tokens of the model's context a text leaves free.
        max_steps: The most commands in a game.
    """
    for count in (2, 1) if examples else ():
        fewer = {kind: texts[:count] for kind, texts in examples.items()}
        longest = max((framed(texts) for texts in fewer.values()), key=len)
        if room_after(longest) >= TOKENS_OF_INTRO + max_steps * TOKENS_PER_STEP:
            return fewer
    return {}


def opening(intro: str) -> str:
    """Returns the prompt for the first command: the intro without its first paragraph, the welcome."""
    return "\n".join(intro.split("\n\n")[1:]) + _PROMPT


def turn(command: str, observation: str) -> str:
    """Returns what a command and its answer add to the prompt."""
    return f" {command}\n{observation}{_PROMPT}"


def transcript(intro: str, turns: Iterable[tuple[str, str]]) -> str:
    """Returns the text of a game, given pairs of a command and its answer; it ends with an answer."""
    return (opening(intro) + "".join(turn(*pair) for pair in turns)).removesuffix(_PROMPT)


class GameEnvironment:
    """A game as an environment; see `episodes.Environment`."""

    def __init__(self, game: Game, before: str = "", faithful: bool = False) -> None:
        """Opens a game.

        Args:
            before: What the model reads first, such as `framed` examples.
            faithful: Whether a line must be a command as it stands, as in the reference.
        """
        self.game, self.play = game, Play(game)
        self.prompt = before + opening(self.play.intro)
        self.commands: list[str] = []
        """The commands so far, without what `read_command` leaves out."""
        self.invalid = 0
        """How many of them had no effect."""
        self.states: list[Hashable] = []
        """The state before each turn."""
        self._faithful = faithful

    @property
    def done(self) -> bool:
        """Whether the game is won."""
        return self.play.won

    @property
    def reward(self) -> float:
        """1 if the game is won, else 0."""
        return float(self.play.won)

    def write(self, line: str) -> str:
        """Carries out a command, and returns what follows it in the prompt. A thought is answered "OK."."""
        command = line.strip() if self._faithful else read_command(line)
        self.commands.append(command)
        self.states.append(self.play.state)
        observation = self.play.step(command)
        if command.startswith(THOUGHT):
            observation = "OK."
        self.invalid += observation == NOTHING_HAPPENS
        return observation + ("" if self.done else _PROMPT)
