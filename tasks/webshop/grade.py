r"""WebShop's grader: the model shops for every goal of the eval set, greedily, one action a line.

As the reference does it (autorl_bench/benchmarks/webshop/eval.py): a purchase is a success if its reward is at least
0.5; the mean reward, and the share of perfect rewards, which other papers report, stand beside it. A visit that buys
nothing within the step limit is worth 0. Unlike there, a visit that breaks down is errored and not a failure, and one
that outgrows the model's context ends there as truncated (vLLM would refuse the prompt, and the reference leaves such a
visit out of its count of successes without a word).

The reference shows each turn as a prompt of its own, with a window of five turns; the mini variant, whose model is
small, shows one growing text. See shop/transcript.py for both; the data says which it is. Every visit is a conversation
of its own, and all of them share the model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from a2rl.data import ABOUT
from a2rl.errors import UsageError
from a2rl.sampling import Conversation, Message, Prompt, Sampler, SamplingParams
from a2rl.score import ItemResult, Verdict
from a2rl.task import Limits, Options
from tasks.webshop.shop import Goal, Session, Shop
from tasks.webshop.shop.page import BUY_NOW, NEXT_PAGE
from tasks.webshop.shop.product import PATH_MARK
from tasks.webshop.shop.transcript import SYSTEM, Form, Visit
from tasks.webshop.task import TASK

SUCCESS = 0.5
ANSWER_SHOWN = 2000


class _Hall(NamedTuple):
    """The shop of an eval set, and what is asked for in it."""

    shop: Shop
    goals: Mapping[str, Goal]
    form: Form


def item_ids(hidden: Path) -> list[str]:
    """See `a2rl.task.Grader`. An item is a goal."""
    return list(_goals(hidden))


def grade(sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options) -> list[ItemResult]:
    """See `a2rl.task.Grader`."""
    hall = _open(hidden)
    room = sampler.room_after("") - limits.max_new_tokens
    params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=("\n",))
    visits = [_visit(hall, hall.goals[each], limits, room, sampler.has_chat_template) for each in ids]
    return sampler.converse(visits, params)


def score_outputs(outputs: Mapping[str, str], hidden: Path, ids: Sequence[str]) -> list[ItemResult]:
    """See `a2rl.task.Grader`. A completion is what a customer did, one action a line."""
    hall = _open(hidden)
    return [
        _replayed(hall, hall.goals[each], outputs[each].splitlines())
        if each in outputs
        else ItemResult(id=each, verdict="errored", reason="no completion was given")
        for each in ids
    ]


def gold_outputs(hidden: Path) -> dict[str, str]:
    """See `a2rl.task.Grader`. Ways to the product that each goal was made from, by somebody who knows which it is."""
    hall = _open(hidden)
    return {each: "\n".join(_way(hall.shop, goal)) for each, goal in hall.goals.items()}


def item_kinds(hidden: Path) -> dict[str, str]:
    """See `a2rl.task.KindsGrader`."""
    return {each: _group(goal) for each, goal in _goals(hidden).items()}


def _goals(hidden: Path) -> dict[str, Goal]:
    lines = (hidden / "goals.jsonl").read_text(encoding="utf-8").splitlines()
    return {goal.id: goal for goal in map(Goal.from_json, lines)}


def _open(hidden: Path) -> _Hall:
    form = json.loads((hidden / ABOUT).read_text(encoding="utf-8"))["prompt"]
    if form not in get_args(Form):
        raise UsageError(f"{hidden / ABOUT} names a prompt {form!r}: prepare the data anew")
    return _Hall(Shop.open(hidden / "catalogue"), _goals(hidden), form)


def _visit(hall: _Hall, goal: Goal, limits: Limits, room: int, chat: bool) -> Conversation[ItemResult]:
    """A visit, from the search page to the purchase."""
    tokens = 0
    try:
        visit = Visit(hall.shop, goal, hall.form)
        while not visit.done and len(visit.actions) < limits.max_steps:
            completion = yield _prompt(visit, chat)
            if completion.prompt_tokens >= room:
                return _result(goal, visit, tokens, "truncated")
            visit.write(completion.text)
            tokens += completion.tokens
        return _result(goal, visit, tokens)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        return ItemResult(id=goal.id, verdict="errored", group=_group(goal), reason=f"the visit broke down: {error!r}")


def _prompt(visit: Visit, chat: bool) -> Prompt:
    if visit.form == "whole":
        return visit.prompt
    return (Message("system", SYSTEM), Message("user", visit.prompt)) if chat else f"{SYSTEM}\n\n{visit.prompt}"


def _replayed(hall: _Hall, goal: Goal, actions: Sequence[str]) -> ItemResult:
    visit = Visit(hall.shop, goal, hall.form)
    for action in actions[: TASK.full.limits.max_steps]:
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
    """The department that the product is of."""
    return goal.product_category.partition(PATH_MARK)[0].strip()


def _way(shop: Shop, goal: Goal) -> list[str]:
    """Search, as many pages on as it takes, product, options, purchase; nothing where the search does not find it."""
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
