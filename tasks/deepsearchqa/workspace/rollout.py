"""Works on many questions at once with a model that is being trained: the rollouts of online RL.

The agent gets this file beside `research/` (pages, the search, what is right), `episodes.py` and `decoder.py` (batched
episodes). `for_trl` makes of it what TRL's GRPOTrainer takes as `rollout_func`.

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

Search = Callable[[str], Sequence[Hit]]


class Work:
    """A question being worked on, as an environment; see `episodes.Environment`.

    A turn without an action ends it: the grader would make the model answer then, which is nothing to learn from.
    """

    invalid = 0

    def __init__(self, question: Question, search: Search, instructions: str = "", max_steps: int = MAX_STEPS) -> None:
        self.question, self.search = question, search
        self.episode = Episode(question, instructions, max_steps)

    @property
    def prompt(self) -> str:
        return self.episode.text

    @property
    def done(self) -> bool:
        return self.episode.over or self.episode.forced

    @property
    def reward(self) -> float:
        return float(compare(self.episode.answer or "", self.question.answer, self.question.answer_type).exact)

    def write(self, turn: str) -> str:
        query = self.episode.take(turn)
        if query is None:
            return ""
        shown = observation(self.search(query))
        self.episode.observe(shown)
        return observed(shown)


class Actions:
    """A turn ends with its action; see `episodes.Turns`."""

    closing = "]"

    def complete(self, written: str) -> bool:
        return has_action(written)

    def read(self, written: str) -> tuple[str, str]:
        return written, ""


class Rollout(episodes.Episode):
    """A question as the model worked on it."""

    @property
    def question(self) -> Question:
        return self.environment.question

    @property
    def queries(self) -> list[str]:
        return self.environment.episode.queries

    @property
    def answer(self) -> str | None:
        return self.environment.episode.answer

    @property
    def right(self) -> bool:
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
    """One rollout for each question; the same one may be there several times. `settings`: see `episodes.play`."""
    work = [Work(question, search, instructions, max_steps) for question in questions]
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
    """A `rollout_func`. Prompts of the data set are the names of the questions; see `episodes.for_trl`.

    GRPOTrainer(..., train_dataset=Dataset.from_list([{"prompt": name} for name in questions]), reward_funcs=rewarded,
                rollout_func=for_trl(questions, index.search, temperature=1.0))
    """
    return episodes.for_trl(
        lambda name: Work(questions[name], search, instructions),
        lambda episode: reward(Rollout(**vars(episode))),
        max_new_tokens=max_new_tokens,
        turns=ACTIONS,
        **settings,
    )
