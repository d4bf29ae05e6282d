r"""WebShop's grader: the model shops for every goal of the eval set, greedily, one action a line.

As the reference does it (autorl_bench/benchmarks/webshop/eval.py): a purchase is a success if its reward is at least
0.5. The mean reward and the share of perfect rewards, which other papers report, are measured as well. A visit that
buys nothing within the step limit has reward 0. Unlike in the reference, a visit that fails for a technical reason is
errored instead of wrong, and one that outgrows the model's context ends there as truncated (vLLM would refuse the
prompt, and the reference silently does not count such a visit as a success).

The reference makes a new prompt for each turn, with a window of five turns; the mini variant, whose model is small,
shows one growing text. See shop/transcript.py for both; about.json in the data says which one applies. Every visit is
a separate conversation, and all of them share the model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from a2rl.core.errors import UsageError
from a2rl.sampling import Conversation, Sampler, SamplingParams, as_prompt
from a2rl.scoring.score import ItemResult, Verdict
from a2rl.task_api.contract import Limits, Options
from a2rl.task_api.data import ABOUT
from tasks.webshop.shop import Goal, Session, Shop, read_goals
from tasks.webshop.shop.catalogue import PATH_MARK
from tasks.webshop.shop.page import BUY_NOW, NEXT_PAGE
from tasks.webshop.shop.transcript import REFERENCE_SYSTEM, SYSTEM, Form, Visit, asked

SUCCESS = 0.5
ANSWER_SHOWN = 2000


class _EvalSet(NamedTuple):
    """The goals of an eval set, and the shop that they are about."""

    shop: Shop
    goals: Mapping[str, Goal]
    form: Form


def item_ids(hidden: Path) -> list[str]:
    """See `a2rl.task_api.contract.Grader`. An item is a goal."""
    return list(_goals(hidden))


def grade(sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options) -> list[ItemResult]:
    """See `a2rl.task_api.contract.Grader`."""
    eval_set = _open(hidden)
    params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=("\n",))
    chat, faithful = sampler.has_chat_template, options.get("prompts") == "faithful"
    visits = [_visit(eval_set, eval_set.goals[each], limits, chat, faithful) for each in ids]
    return sampler.converse(visits, params)


def score_outputs(outputs: Mapping[str, str], hidden: Path, ids: Sequence[str], limits: Limits) -> list[ItemResult]:
    """See `a2rl.task_api.contract.Grader`. A completion is a list of actions, one a line."""
    eval_set = _open(hidden)
    return [
        _replayed(eval_set, eval_set.goals[each], outputs[each].splitlines()[: limits.max_steps])
        if each in outputs
        else ItemResult(id=each, verdict="errored", reason="no completion was given")
        for each in ids
    ]


def gold_outputs(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.Grader`. The fewest actions that buy the product of each goal."""
    eval_set = _open(hidden)
    return {each: "\n".join(_shortest_actions(eval_set.shop, goal)) for each, goal in eval_set.goals.items()}


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task_api.contract.KindsGrader`."""
    return {each: _group(goal) for each, goal in _goals(hidden).items()}


def _goals(hidden: Path) -> dict[str, Goal]:
    return {goal.id: goal for goal in read_goals(hidden / "goals.jsonl")}


def _open(hidden: Path) -> _EvalSet:
    form = json.loads((hidden / ABOUT).read_text(encoding="utf-8"))["prompt"]
    if form not in get_args(Form):
        raise UsageError(f"{hidden / ABOUT} names a prompt {form!r}: prepare the data again")
    return _EvalSet(Shop(hidden / "catalogue"), _goals(hidden), form)


def _visit(eval_set: _EvalSet, goal: Goal, limits: Limits, chat: bool, faithful: bool) -> Conversation[ItemResult]:
    """Plays a visit, from the search page to the purchase; a faithful one has the reference's wording."""
    tokens = 0
    try:
        visit = Visit(eval_set.shop, goal, eval_set.form, faithful)
        while not visit.done and len(visit.actions) < limits.max_steps:
            completion = yield as_prompt(asked(visit, chat, REFERENCE_SYSTEM if faithful else SYSTEM))
            if completion.is_cut:
                return _result(goal, visit, tokens, "truncated")
            visit.write(completion.text)
            tokens += completion.tokens
        return _result(goal, visit, tokens)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        return ItemResult(id=goal.id, verdict="errored", group=_group(goal), reason=f"the visit failed: {error!r}")


def _replayed(eval_set: _EvalSet, goal: Goal, actions: Sequence[str]) -> ItemResult:
    visit = Visit(eval_set.shop, goal, eval_set.form)
    for action in actions:
        if not visit.done:
            visit.write(action)
    return _result(goal, visit, 0)


def _result(goal: Goal, visit: Visit, tokens: int, verdict: Verdict | None = None) -> ItemResult:
    reward = visit.reward
    return ItemResult(
        id=goal.id,
        verdict=verdict or ("correct" if reward >= SUCCESS else "wrong"),
        value=float(reward >= SUCCESS),
        answer="\n".join(visit.actions)[:ANSWER_SHOWN],
        tokens=tokens,
        group=_group(goal),
        measures={
            "mean reward": reward,
            "perfect share": float(reward == 1),
            "steps": float(len(visit.actions)),
            "invalid share": visit.invalid / max(1, len(visit.actions)),
        },
    )


def _group(goal: Goal) -> str:
    """Returns the department of the product."""
    return goal.product_category.partition(PATH_MARK)[0].strip()


def _shortest_actions(shop: Shop, goal: Goal) -> list[str]:
    """Returns a search, the clicks that buy the product, or an empty list where the search does not find it."""
    options = list(goal.options.values() if isinstance(goal.options, Mapping) else goal.options)
    words = " ".join([*goal.nouns, *goal.attributes, goal.query, *options])
    session = Session(shop, goal)
    actions = [f"search[{words.translate(_BRACKETS)}]"]
    session.step(actions[0])
    while goal.product_id.lower() not in session.page.clickable():
        actions.append(f"click[{NEXT_PAGE}]")
        session.step(actions[-1])
        if not any(part.kind == "product" for part in session.page.parts()):
            return []
    return [*actions, f"click[{goal.product_id}]", *(f"click[{value}]" for value in options), f"click[{BUY_NOW}]"]


_BRACKETS = str.maketrans("[]", "  ")
