"""Works on many questions at once with a model that is being trained: the rollouts of online RL.

Self-contained: the agent gets this file beside `research/` (pages, episodes, what is right) and `decoder.py` (batched
generation that keeps every episode's key-value cache). `for_trl` makes of it what TRL's GRPOTrainer takes as
`rollout_func`.

    from research import Index, read_pages, read_questions
    from rollout import work_on

    index = Index(read_pages(Path("data/pages")))
    rollouts = work_on(model, tokenizer, index.search, read_questions(Path("data/train.jsonl")), temperature=1.0)
    print(sum(rollout.right for rollout in rollouts) / len(rollouts))
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from decoder import Decoder, Decoding, Turn, Written
from research import Episode, Hit, Question, compare, observation
from research.episode import MAX_STEPS, has_action, observed

MAX_ROWS = 256
CACHE_BYTES = 4 << 30

Search = Callable[[str], Sequence[Hit]]


@dataclass
class Rollout:
    """An episode as the model worked on it. `tokens` follow the prompt: what the model wrote, and what it was shown."""

    question: Question
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of each token under the distribution it was drawn from; 0 for what the model was shown."""
    written: list[int] = field(default_factory=list)
    """1 for tokens that the model wrote, 0 for what it was shown."""
    queries: list[str] = field(default_factory=list)
    answer: str | None = None

    @property
    def right(self) -> bool:
        return compare(self.answer or "", self.question.answer, self.question.answer_type).exact


def work_on(
    model: Any,
    tokenizer: Any,
    search: Search,
    questions: Sequence[Question],
    *,
    instructions: str = "",
    max_steps: int = MAX_STEPS,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
    max_tokens: int = 100_000,
) -> list[Rollout]:
    """One rollout for each question; the same question may be there several times.

    A turn ends with its action. A turn without one ends the episode: the grader would make the model answer then, which
    is nothing to learn from.

    Args:
        max_steps: turns at most, the one that answers among them.
        max_new_tokens: in one turn at most.
        max_tokens: an episode that has become longer ends.
    """
    was_training = model.training
    model.eval()
    decoder, closing = Decoder(model, {tokenizer.eos_token_id}, MAX_ROWS, CACHE_BYTES), _closing(tokenizer)

    def stops(rows: Sequence[list[int]]) -> list[bool]:
        return [row[-1] in closing and has_action(tokenizer.decode(row)) for row in rows]

    def rollout(question: Question) -> Generator[Turn, Written, Rollout]:
        episode = Episode(question, instructions, max_steps)
        done = Rollout(question, tokenizer(episode.text)["input_ids"], queries=episode.queries)
        while not episode.over and len(done.prompt) + len(done.tokens) + max_new_tokens <= max_tokens:
            written = yield Turn(done.prompt + done.tokens, max_new_tokens)
            _add(done, written.tokens, written.logprobs or [0.0] * len(written.tokens), 1)
            query = episode.take(tokenizer.decode(written.tokens, skip_special_tokens=True))
            if query is None:
                break
            shown = observation(search(query))
            episode.observe(shown)
            _add(done, tokenizer(observed(shown))["input_ids"], None, 0)
        done.answer = episode.answer
        return done

    rollouts = decoder.run([rollout(each) for each in questions], Decoding(temperature, seed=seed), stops)
    model.train(was_training)
    return rollouts


def for_trl(
    questions: Mapping[str, Question],
    search: Search,
    reward: Callable[[Rollout], float] = lambda rollout: float(rollout.right),
    seed: int = 0,
    **settings: Any,
) -> Callable[[list[str], Any], dict[str, Any]]:
    """A `rollout_func`. Prompts of the data set are the names of the questions, and `reward` comes as a column.

    def rewarded(reward, **_):
        return reward

    GRPOTrainer(..., train_dataset=Dataset.from_list([{"prompt": name} for name in questions]), reward_funcs=rewarded,
                rollout_func=for_trl(questions, index.search, temperature=1.0))
    """

    def rollout(names: list[str], trainer: Any) -> dict[str, Any]:
        done = work_on(
            trainer.accelerator.unwrap_model(trainer.model),
            trainer.processing_class,
            search,
            [questions[name] for name in names],
            seed=seed + 1000 * trainer.state.global_step,
            **settings,
        )
        return {
            "prompt_ids": [each.prompt for each in done],
            "completion_ids": [each.tokens for each in done],
            "logprobs": [each.logprobs for each in done],
            "env_mask": [each.written for each in done],
            "reward": [reward(each) for each in done],
        }

    return rollout


@cache
def _closing(tokenizer: Any) -> set[int]:
    """The tokens that may end an action."""
    return {token for token in range(len(tokenizer)) if "]" in tokenizer.decode([token])}


def _add(rollout: Rollout, tokens: Sequence[int], logprobs: Sequence[float] | None, written: int) -> None:
    rollout.tokens += tokens
    rollout.logprobs += logprobs if logprobs is not None else [0.0] * len(tokens)
    rollout.written += [written] * len(tokens)
