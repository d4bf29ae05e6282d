"""A whole task from rows and two functions, or from rows and an environment: the least that a task needs.

The task has a module of its own, `items.py`, which imports nothing of ours and which agents get, too. It says what a
row asks and what an answer earns, in one of two ways:

    def prompt(row): ...             # a text to continue, or a chat: a list of {"role", "content"}
    def reward(row, answer): ...     # 0 to 1

    class Environment: ...           # Environment(row), with what `a2rl.handout.episodes.Environment` has

It may also have `STOP`, the texts before which an answer ends (an environment's turns end with the line), and
`gold(row)`, the answer of a perfect model, with one turn a line for an environment; otherwise that is `row["answer"]`.
A model with a chat template is asked `prompt`'s text as the user's message.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from a2rl.core.errors import TaskDefinitionError
from a2rl.core.files import read_jsonl, write_jsonl
from a2rl.handout import hand_out
from a2rl.handout import rows as handed_out
from a2rl.handout.rows import asked, gold, is_interactive, stops
from a2rl.sampling import Completion, Conversation, Sampler, SamplingParams, as_prompt
from a2rl.scoring.score import MOST, ItemResult, Verdict
from a2rl.task_api.contract import Limits, Options, failure_text

TRAIN, EVAL = "train.jsonl", "eval.jsonl"
ANSWER_SHOWN = 2000
ENVIRONMENT = ("prompt", "done", "reward", "invalid", "write")
"""What an environment has. Grading does not need all of it, but what agents train with does."""

Row = Mapping[str, Any]
Reward = float | Mapping[str, float] | BaseException
"""What an answer earns, or why that is not known. Of several figures by name, the first is the value."""
Rewards = Callable[[Sequence[tuple[Row, str]]], Sequence[Reward]]


def one_by_one(reward: Callable[[Row, str], Any]) -> Rewards:
    """Returns a function that rewards many answers. If it fails for one, only that one has no value."""

    def rewards(answered: Sequence[tuple[Row, str]]) -> list[Reward]:
        values: list[Reward] = []
        for row, answer in answered:
            try:
                values.append(_number(reward(row, answer), "reward(row, answer) must return"))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the task raises is its failure
                values.append(error)
        return values

    return rewards


def value_of(reward: float | Mapping[str, float]) -> float:
    """Returns the value of an answer."""
    return next(iter(reward.values())) if isinstance(reward, Mapping) else reward


def write_rows(items: ModuleType, train: Iterable[Row], evaluation: Iterable[Row], visible: Path, hidden: Path) -> None:
    """Writes the data of a task, and hands `items.py` to the agent; for `prepare`.

    Args:
        train: The rows that the agent gets, with their answers.
        evaluation: The rows that only the grader has.
        visible: See `a2rl.task_api.contract.Preparer`.
        hidden: The same.

    Raises:
        TaskDefinitionError: A row is in both, or no dict, or two rows of the eval set have the same id.
    """
    train, evaluation = list(train), list(evaluation)
    if shared := {str(row) for row in train} & {str(row) for row in evaluation}:
        raise TaskDefinitionError(
            f"rows are in the training data and in the eval set: keep each in one of them; there are {len(shared)}, "
            f"such as {min(shared)}"
        )
    write_jsonl(visible / TRAIN, map(_fields, train))
    write_eval_rows(evaluation, hidden)
    hand_out(visible, items, handed_out)


def write_eval_rows(rows: Iterable[Row], hidden: Path) -> None:
    """Writes an eval set; for `draw`, see `a2rl.task_api.contract.DrawingPreparer`.

    Raises:
        TaskDefinitionError: A row is no dict, or two rows have the same id.
    """
    rows = list(rows)
    write_jsonl(hidden / EVAL, map(_fields, rows))
    for item, count in Counter(str(row.get("id", place)) for place, row in enumerate(rows)).items():
        if count > 1:
            raise TaskDefinitionError(
                f"{count} rows of the eval set have the `id` {item}: give each its own, or leave `id` out"
            )


def _fields(row: Row) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise TaskDefinitionError(f"a row must be a dict, and not {row!r}")
    return dict(row)


def _number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} a number from 0 to 1, and not {value!r}") from None


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} a text, and not {value!r}")
    return value


class RowsGrader:
    """The functions of `grade.py` for such a task; see `a2rl.task_api.contract.Grader`.

    grader = RowsGrader(items)
    item_ids, grade = grader.item_ids, grader.grade
    score_outputs, gold_outputs = grader.score_outputs, grader.gold_outputs
    """

    def __init__(self, items: ModuleType, rewards: Rewards | None = None, answer_shown: int = ANSWER_SHOWN) -> None:
        """Makes a grader.

        Args:
            items: The task's `items.py`.
            rewards: Returns what many answers earn, where that is not `items.reward`.
            answer_shown: The most characters of an answer that a result shows: its end.

        Raises:
            TaskDefinitionError: `items.py` lacks a function.
        """
        wanted = () if rewards or is_interactive(items) else ("prompt", "reward")
        if lacking := [name for name in wanted if not hasattr(items, name)]:
            raise TaskDefinitionError(
                f"items.py has no function `{lacking[0]}`: it needs `prompt(row)` and `reward(row, answer)`, or the "
                "class `Environment`"
            )
        self.items, self.answer_shown = items, answer_shown
        self.rewards = rewards or one_by_one(lambda row, answer: items.reward(row, answer))  # noqa: PLW0108 - some have none

    def item_ids(self, hidden: Path) -> list[str]:
        """See `a2rl.task_api.contract.Grader`. An item's id is the row's `id`, or its place from 0."""
        return list(self.rows(hidden))

    def grade(
        self, sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options
    ) -> list[ItemResult]:
        """See `a2rl.task_api.contract.Grader`."""
        rows = self.rows(hidden)
        params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=stops(self.items))
        if is_interactive(self.items):
            return sampler.converse([self._episode(each, rows[each], limits.max_steps) for each in ids], params)
        prompts = [as_prompt(asked(self.items, rows[each], sampler.has_chat_template)) for each in ids]
        return self.judged(ids, [rows[each] for each in ids], sampler.generate(prompts, params))

    def score_outputs(
        self, outputs: Mapping[str, str], hidden: Path, ids: Sequence[str], limits: Limits
    ) -> list[ItemResult]:
        """See `a2rl.task_api.contract.Grader`. An episode's completion has one turn a line."""
        rows, there = self.rows(hidden), [each for each in ids if each in outputs]
        if is_interactive(self.items):
            results = [
                self._replayed(each, rows[each], outputs[each].splitlines()[: limits.max_steps]) for each in there
            ]
        else:
            given = [Completion(outputs[each], "stop", 0, 0).until(stops(self.items)) for each in there]
            results = self.judged(there, [rows[each] for each in there], given)
        missing = {each: ItemResult(id=each, verdict="errored", reason="no completion was given") for each in ids}
        return list((missing | {result.id: result for result in results}).values())

    def gold_outputs(self, hidden: Path) -> dict[str, str]:
        """See `a2rl.task_api.contract.Grader`."""
        return {each: gold(self.items, row) or "" for each, row in self.rows(hidden).items()}

    def rows(self, hidden: Path) -> dict[str, dict[str, Any]]:
        """Returns the rows of the eval set by id."""
        return {str(row.get("id", place)): row for place, row in enumerate(read_jsonl(hidden / EVAL))}

    def _replayed(self, item: str, row: Row, turns: list[str]) -> ItemResult:
        episode = self._episode(item, row, len(turns))
        try:
            next(episode)
            while True:
                episode.send(Completion(turns.pop(0), "stop", 0, 0))
        except StopIteration as end:
            result: ItemResult = end.value
            return result

    def judged(self, ids: Sequence[str], rows: Sequence[Row], completions: Sequence[Completion]) -> list[ItemResult]:
        """Returns the results of answers to rows."""
        values = self.rewards([(row, done.text) for row, done in zip(rows, completions, strict=True)])
        return [
            self._result(item, value, done.text, done.tokens, done.finish == "length")
            for item, value, done in zip(ids, values, completions, strict=True)
        ]

    def _episode(self, item: str, row: Row, steps: int) -> Conversation[ItemResult]:
        """Plays an episode: one growing text, of which the model writes every other part."""
        turns, tokens, cut = list[str](), 0, False
        try:
            environment = self.items.Environment(row)
            for part in ENVIRONMENT:
                if callable(getattr(environment, part)) != (part == "write"):
                    raise TypeError(f"`{part}` of Environment must be {'a' if part == 'write' else 'no'} method")
            text = _text(environment.prompt, "`prompt` of Environment must be")
            while not environment.done and len(turns) < steps and not cut:
                completion = yield as_prompt(text)
                tokens, cut = tokens + completion.tokens, completion.is_cut
                if not cut:
                    turns.append(completion.text.strip())
                    text += f"{completion.text}\n{_text(environment.write(turns[-1]), 'write(turn) must return')}"
            reward = _number(environment.reward, "`reward` of Environment must be")
            return self._result(item, reward, "\n".join(turns), tokens, cut)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            return self._result(item, error, "", tokens, cut)

    def _result(self, item: str, reward: Reward, answer: str, tokens: int, cut: bool) -> ItemResult:
        if not isinstance(reward, BaseException) and not 0 <= (value := value_of(reward)) <= 1:
            reward = ValueError(f"a reward of {value}, which is not from 0 to 1")
        if isinstance(reward, BaseException):
            reason = f"the task's own code failed: {failure_text(reward)}"
            return ItemResult(id=item, verdict="errored", reason=reason[:ANSWER_SHOWN])
        verdict: Verdict = "correct" if value > MOST else "truncated" if cut else "wrong"
        measures = dict(reward) if isinstance(reward, Mapping) else {}
        return ItemResult(
            id=item, verdict=verdict, value=value, answer=answer[-self.answer_shown :], tokens=tokens, measures=measures
        )
