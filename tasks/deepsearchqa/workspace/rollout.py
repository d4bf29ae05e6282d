"""A question as an environment that a model which is being trained works on: the rollouts of online RL.

The agent gets this file with `research/` (pages, the search, the comparison), `episodes.py` and `decoder` (batched
episodes).

    from episodes import for_trl, play
    from research import Index, read_pages, read_questions
    from rollout import ACTIONS, QuestionEnvironment

    index, questions = Index(read_pages(Path("data/pages"))), read_questions(Path("data/train.jsonl"))
    work = [QuestionEnvironment(question, index.search) for question in questions]
    settings = {"turns": ACTIONS, "max_steps": 6, "max_new_tokens": 64, "temperature": 1.0}
    episodes = play(model, tokenizer, work, **settings)
    print(sum(episode.reward for episode in episodes) / len(episodes))
    rollout_func = for_trl(lambda number: QuestionEnvironment(questions[int(number)], index.search), **settings)
"""

from collections.abc import Callable, Sequence
from typing import Any

from decoder import Stops, StopStrings, told
from research import Episode, Hit, Question, compare, observation
from research.episode import MAX_STEPS, has_action, observed

Search = Callable[[str], Sequence[Hit] | None]
"""Finds results; None: the search failed. `Index.search`, or `services.Search` for the run's own."""
SEARCH_FAILED = "The search failed."


class QuestionEnvironment:
    """A question as an environment; see `episodes.Environment`.

    A turn without an action ends it: the grader would then make the model answer, which teaches nothing.
    """

    invalid = 0

    def __init__(
        self,
        question: Question,
        search: Search,
        instructions: str = "",
        max_steps: int = MAX_STEPS,
        reward: Callable[[Question, str], float] | None = None,
        faithful: bool = False,
    ) -> None:
        """Asks a question.

        Args:
            search: Finds results.
            instructions: The text before the question.
            max_steps: The most turns.
            reward: Returns what an answer is worth; unless given, 1 for a right one.
            faithful: As of `Episode`, for the grader's option `prompts: faithful`.
        """
        self.question, self.search, self.worth = question, search, reward
        self.episode = Episode(question, instructions, max_steps, faithful)

    @property
    def prompt(self) -> str:
        """The text that the model continues."""
        return self.episode.text

    @property
    def done(self) -> bool:
        """Whether it is answered, no turn is left, or a turn had no action."""
        return self.episode.over or self.episode.forced

    @property
    def reward(self) -> float:
        """What the answer is worth; 0 for none."""
        answer = self.episode.answer or ""
        if self.worth is not None:
            return self.worth(self.question, answer)
        return float(compare(answer, self.question.answer, self.question.answer_type).exact)

    def write(self, turn: str) -> str:
        """Carries out a turn, and returns what follows it in the prompt."""
        query = self.episode.take(turn)
        if query is None:
            return ""
        hits = self.search(query)
        shown = SEARCH_FAILED if hits is None else observation(hits)
        self.episode.observe(shown)
        return observed(shown)


class Actions:
    """Turns that end with their action; see `episodes.Turns`."""

    def stops(self, tokenizer: Any) -> Stops:
        """Returns what says which turns have their action."""
        brackets = StopStrings(tokenizer, "]")  # only where there is one is the whole turn read
        return lambda rows: [
            bracket and has_action(tokenizer.decode(told(tokenizer, row)))
            for bracket, row in zip(brackets(rows), rows, strict=True)
        ]

    def read(self, written: str) -> tuple[str, str]:
        """Returns the turn, with nothing left over."""
        return written, ""


ACTIONS = Actions()
