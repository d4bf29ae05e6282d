"""AlpacaEval's grader: greedy answers, each compared with the reference's by a judge.

A base model continues `### Instruction:`, the instruction, `### Response:`: the headings of Alpaca's prompt, which is
also the published one of alpaca-7b, without its opening sentence. The reference (autorl_bench/benchmarks/alpacaeval/
eval.py, `_format_prompt`) gives a base model the instruction alone, which it tends to continue instead of answering it.
A model with a chat template gets the instruction as the user's turn, as in the reference.

An item's value is the probability that the judge prefers the model's answer (0.5: a tie), and an item above 0.5 is
correct. The score is the length-controlled win rate of the `alpaca-eval` package (length_control.py); the plain win
rate, the mean of the values, is reported as well. Without asking the judge, an answer that equals the reference's is a
tie, and an empty one is lost. An item without a readable answer of the judge is errored. Thoughts are no part of an
answer: the judge does not see them, and its length is without them.

mini: the judge is a rule that this repo serves over the same API (annotator.py). full: the judge of params.yaml.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a2rl.core.files import read_jsonl
from a2rl.core.model_text import answer_of
from a2rl.judge.client import DOLLARS, Answer, Asking, Question
from a2rl.judge.local import open_judge
from a2rl.judge.params import JudgeConfig
from a2rl.sampling import Completion, Conversation, Sampler, SamplingParams, as_prompt
from a2rl.scoring.means import Interval, mean_interval
from a2rl.scoring.paired import Improvement, difference_interval
from a2rl.scoring.score import Headline, ItemResult, Verdict, errors_tolerated
from a2rl.task_api.contract import Limits, Options, OwnJudge
from tasks.alpacaeval.annotator import RULE_ANNOTATOR, TRIAL, Pair, question
from tasks.alpacaeval.length_control import (
    Annotated,
    LengthControl,
    NotComputableError,
    length_control,
    pseudo_values,
)
from tasks.alpacaeval.prepare import CALIBRATION
from tasks.alpacaeval.prompts import STOP, prompt

ANSWER_SHOWN = 500
OWN_JUDGE = OwnJudge("tasks.alpacaeval.annotator", RULE_ANNOTATOR)
LENGTH = "length, characters"


@dataclass(frozen=True, slots=True)
class Item:
    """An instruction of the eval set."""

    id: str
    instruction: str
    dataset: str
    reference: str
    gold: str


def items_of(hidden: Path) -> list[Item]:
    """The eval set; an item's id is its row number from 0."""
    return [
        Item(str(place), row["instruction"], row["dataset"], row["reference"], row.get("gold", row["reference"]))
        for place, row in enumerate(read_jsonl(hidden / "eval.jsonl"))
    ]


def item_ids(hidden: Path) -> list[str]:
    """See `a2rl.task_api.contract.Grader`."""
    return [item.id for item in items_of(hidden)]


def grade(
    sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options, asking: Asking
) -> Callable[[], list[ItemResult]]:
    """See `a2rl.task_api.contract.JudgedGrader`."""
    items, chat = _selected(hidden, ids), sampler.has_chat_template

    def answer(item: Item) -> Conversation[Completion]:
        completion = yield as_prompt(prompt(item.instruction, chat))
        _ask(item, completion, asking)
        return completion

    params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=(STOP,))
    completions = dict(zip(ids, sampler.converse([answer(item) for item in items], params), strict=True))
    return lambda: _judged(completions, items, asking)


def score_outputs(
    outputs: Mapping[str, str], hidden: Path, ids: Sequence[str], limits: Limits, judging: JudgeConfig | None = None
) -> list[ItemResult]:
    """See `a2rl.task_api.contract.JudgedGrader`."""
    items = _selected(hidden, ids)
    completions = {each: Completion(outputs[each], "stop", 0, 0).until((STOP,)) for each in ids if each in outputs}
    with open_judge(judging, *OWN_JUDGE) as judge:
        asking = judge.asking(errors_tolerated(len(items)))
        for item in items:
            if item.id in completions:
                _ask(item, completions[item.id], asking)
        return _judged(completions, items, asking)


def trial_question(annotator: str) -> Question:
    """See `a2rl.task_api.contract.JudgedGrader`."""
    return question(annotator, TRIAL)


def gold_outputs(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.Grader`. In the full variant these are the reference's outputs, which tie."""
    return {item.id: item.gold for item in items_of(hidden)}


def headline(items: Sequence[ItemResult], hidden: Path) -> Headline:
    """See `a2rl.task_api.contract.HeadlineGrader`: the length-controlled win rate, with the plain one.

    In log odds a length-controlled win rate is the plain one plus a shift. Its interval is that of the plain one with
    both ends shifted by as much. The package's standard error is that of the predictions, which vanishes if all
    instructions are equally difficult.
    """
    values = [item.value for item in items]
    plain = 100 * statistics.fmean(values)
    measures = {"win rate": plain}
    if len(values) > 1:
        measures["win rate, standard error"] = 100 * statistics.stdev(values) / math.sqrt(len(values))
    measures[f"{DOLLARS} in all"] = sum(item.measures.get(DOLLARS, 0.0) for item in items)
    try:
        controlled = _controlled(items, hidden)[0].rate
    except NotComputableError as error:
        return Headline(None, None, str(error), measures)
    interval = _shifted(mean_interval(values), plain, controlled, len(items))
    return Headline(controlled, interval, "", measures)


def improvement(
    before: Sequence[ItemResult], after: Sequence[ItemResult], level: float, hidden: Path
) -> Improvement | None:
    """See `a2rl.task_api.contract.HeadlineGrader`: the difference of the length-controlled win rates.

    Its interval and test are those of the differences of what each item adds to the two rates: they are fitted again
    without each item in turn (see length_control.py). The penalties that were chosen for the two models may
    differ much, and with few items one may be so strong that nothing is controlled for. So the interval also covers
    the fits with the weaker penalty for both. Longer answers that are not better are no improvement.
    """
    try:
        (old, old_data), (new, new_data) = (_controlled(items, hidden) for items in (before, after))
    except NotComputableError:
        return None
    points, weaker = new.rate - old.rate, max(old.strength, new.strength)
    published = pseudo_values(new_data, new.strength) - pseudo_values(old_data, old.strength)
    published += points / 100 - published.mean()
    alike = pseudo_values(new_data, weaker) - pseudo_values(old_data, weaker)
    one, other = (difference_interval(differences.tolist(), level) for differences in (published, alike))
    return Improvement(points, Interval(min(one.low, other.low), max(one.high, other.high)))


def contributions(items: Sequence[ItemResult], hidden: Path) -> Sequence[float] | None:
    """See `a2rl.task_api.contract.HeadlineGrader`."""
    try:
        fit, data = _controlled(items, hidden)
    except NotComputableError:
        return None
    values = pseudo_values(data, fit.strength)
    return [float(value) for value in values + fit.rate / 100 - values.mean()]


def _controlled(results: Sequence[ItemResult], hidden: Path) -> tuple[LengthControl, Annotated]:
    """Returns the fit, and the data to repeat it. Raises NotComputableError."""
    items = _selected(hidden, [each.id for each in results])
    references = [len(item.reference) for item in items]
    lengths = [
        reference - result.measures.get(LENGTH, reference)  # unknown: like the reference's
        for reference, result in zip(references, results, strict=True)
    ]
    return length_control(
        [int(item.id) for item in items], lengths, [each.value for each in results], hidden / CALIBRATION
    )


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.KindsGrader`: the data sets of the instructions."""
    return {item.id: item.dataset for item in items_of(hidden)}


def _selected(hidden: Path, ids: Sequence[str]) -> list[Item]:
    by_id = {item.id: item for item in items_of(hidden)}
    return [by_id[item_id] for item_id in ids]


def _said(text: str) -> str:
    """Returns the answer in what a model wrote."""
    return answer_of(text).strip()


def _ask(item: Item, completion: Completion, asking: Asking) -> None:
    """Asks about an answer that needs a judge."""
    output = _said(completion.text)
    if _without_asking(item, output) is None:
        asking.put(item.id, question(asking.annotator, Pair(item.instruction, item.reference, output)))


def _judged(completions: Mapping[str, Completion], items: Sequence[Item], asking: Asking) -> list[ItemResult]:
    """Returns a result for each item; those without a completion are errored."""
    known = {
        item.id: _without_asking(item, _said(completions[item.id].text)) for item in items if item.id in completions
    }
    answers = known | asking.answers()
    return [_result(item, completions.get(item.id), answers.get(item.id)) for item in items]


def _without_asking(item: Item, output: str) -> Answer | None:
    """Returns verdicts that need no judge: for an empty answer, and for the reference's answer (a tie)."""
    if not output:
        return Answer(0.0)
    return Answer(0.5) if output == _said(item.reference) else None


def _result(item: Item, completion: Completion | None, answer: Answer | None) -> ItemResult:
    if completion is None or answer is None:
        return ItemResult(id=item.id, verdict="errored", group=item.dataset, reason="no completion was given")
    output = _said(completion.text)
    verdict: Verdict = "errored"
    if answer.verdict is not None:
        lost: Verdict = "truncated" if completion.finish == "length" else "wrong"
        verdict = "correct" if answer.verdict > 0.5 else lost
    return ItemResult(
        id=item.id,
        verdict=verdict,
        value=answer.verdict or 0.0,
        answer=output[:ANSWER_SHOWN],
        reason=answer.reason,
        tokens=completion.tokens,
        group=item.dataset,
        measures={
            LENGTH: float(len(output)),
            "judge's tokens": float(answer.prompt_tokens + answer.completion_tokens),
            DOLLARS: answer.dollars,
        },
    )


def _shifted(plain: Interval, win_rate: float, controlled: float, items: int) -> Interval:
    """Shifts the interval of the plain win rate in log odds as length control shifted the rate. In percent."""
    edge = 50 / items  # a rate of 0 or 100 has no log odds; half an item is its precision

    def log_odds(rate: float) -> float:
        rate = min(max(rate, edge), 100 - edge)
        return math.log(rate / (100 - rate))

    shift = log_odds(controlled) - log_odds(win_rate)
    low, high = (100 / (1 + math.exp(-log_odds(end) - shift)) for end in plain)
    return Interval(min(low, controlled), max(high, controlled))
