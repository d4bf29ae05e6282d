"""Plays many episodes at once, over one index."""

from collections.abc import Sequence
from typing import NamedTuple

from .episode import MAX_STEPS, Episode, Question, observation
from .index import Index
from .match import compare


class Step(NamedTuple):
    """The state of an episode."""

    text: str
    """The text that the model continues."""
    reward: float
    """1.0 on the step that answers right, else 0.0."""
    done: bool
    answer: str | None


class VectorEnv:
    """Works on any number of questions, each in up to `max_steps` turns.

    env = VectorEnv(Index(read_pages(Path("pages"))))
    texts = env.reset(questions)
    steps = env.step([next_turn(text) for text in texts])
    """

    def __init__(self, index: Index, max_steps: int = MAX_STEPS, instructions: str = "", results: int = 3) -> None:
        self._index, self._max_steps, self._instructions, self._results = index, max_steps, instructions, results
        self.questions: list[Question] = []
        self.episodes: list[Episode] = []

    def reset(self, questions: Sequence[Question]) -> list[str]:
        """Starts an episode for each question, and returns the texts."""
        self.questions = list(questions)
        self.episodes = [Episode(question, self._instructions, self._max_steps) for question in questions]
        return [episode.text for episode in self.episodes]

    def step(self, written: Sequence[str | None]) -> list[Step]:
        """Takes what the model wrote in each episode; None has no effect, nor has text for an episode that is over."""
        return [self._step(*row) for row in zip(self.questions, self.episodes, written, strict=True)]

    def _step(self, question: Question, episode: Episode, written: str | None) -> Step:
        if written is None or episode.over:
            return Step(episode.text, 0.0, episode.over, episode.answer)
        query = episode.take(written)
        if query is not None:
            episode.observe(observation(self._index.search(query, self._results)))
        right = episode.answer is not None and compare(episode.answer, question.answer, question.answer_type).exact
        return Step(episode.text, float(right), episode.over, episode.answer)
