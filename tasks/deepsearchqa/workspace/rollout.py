"""Works on many questions at once with a model that is being trained: the rollouts of online RL.

The agent gets this file with `research/` (pages, the search, the comparison), `episodes.py` and `decoder` (batched
episodes). `for_trl` returns a `rollout_func` for TRL's GRPOTrainer.

    from research import Index, read_pages, read_questions
    from rollout import work_on

    index = Index(read_pages(Path("data/pages")))
    rollouts = work_on(model, tokenizer, index.search, read_questions(Path("data/train.jsonl")), temperature=1.0)
    print(sum(rollout.right for rollout in rollouts) / len(rollouts))
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import episodes
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
    ) -> None:
        """Asks a question.

        Args:
            question: The question.
            search: Finds results.
            instructions: The text before the question.
            max_steps: The most turns.
            reward: Returns what an answer is worth; unless given, 1 for a right one.
        """
        self.question, self.search, self.worth = question, search, reward
        self.episode = Episode(question, instructions, max_steps)

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

    closing = "]"

    def complete(self, written: str) -> bool:
        """Whether the turn has its action."""
        return has_action(written)

    def read(self, written: str) -> tuple[str, str]:
        """Returns the turn, with nothing left over."""
        return written, ""


class Rollout(episodes.Episode):
    """The model's work on a question."""

    @property
    def question(self) -> Question:
        """The question."""
        return self.environment.question

    @property
    def queries(self) -> list[str]:
        """The model's searches."""
        return self.environment.episode.queries

    @property
    def answer(self) -> str | None:
        """The model's answer, if there is one."""
        return self.environment.episode.answer

    @property
    def right(self) -> bool:
        """Whether the answer is right."""
        return self.reward == 1


ACTIONS = Actions()


def work_on(
    model: Any,
    tokenizer: Any,
    search: Search,
    questions: Sequence[Question],
    *,
    instructions: str = "",
    max_steps: int = MAX_STEPS,
    max_new_tokens: int = 64,
    **settings: Any,
) -> list[Rollout]:
    """Plays one rollout for each question; questions may repeat. `settings`: see `episodes.play`."""
    work = [QuestionEnvironment(question, search, instructions, max_steps) for question in questions]
    settings |= {"max_steps": max_steps, "max_new_tokens": max_new_tokens, "turns": ACTIONS}
    return [Rollout(**vars(episode)) for episode in episodes.play(model, tokenizer, work, **settings)]


def for_trl(
    questions: Mapping[str, Question],
    search: Search,
    reward: Callable[[Rollout], float] = lambda rollout: float(rollout.right),
    *,
    instructions: str = "",
    max_new_tokens: int = 64,
    **settings: Any,
) -> Callable[[list[str], Any], dict[str, Any]]:
    """Returns a `rollout_func`. Prompts of the data set are the names of the questions; see `episodes.for_trl`.

    GRPOTrainer(..., train_dataset=Dataset.from_list([{"prompt": name} for name in questions]), reward_funcs=rewarded,
                rollout_func=for_trl(questions, index.search, temperature=1.0))
    """
    return episodes.for_trl(
        lambda name: QuestionEnvironment(questions[name], search, instructions),
        lambda episode: reward(Rollout(**vars(episode))),
        max_new_tokens=max_new_tokens,
        turns=ACTIONS,
        **settings,
    )
