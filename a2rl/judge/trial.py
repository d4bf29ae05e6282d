"""Tries a judge with one question before anything depends on it, and says in one line what is wrong and how to fix it.

The question is not taken from the cache of answers: the point is whether the judge answers now.

    check_judge(JudgeConfig.by(params, settings), question)
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from a2rl.core.errors import A2rlError, InfrastructureError, UsageError
from a2rl.core.retries import is_retryable_status
from a2rl.judge.client import NO_MORE_QUOTA, Answer, Question
from a2rl.judge.local import open_judge
from a2rl.judge.params import JudgeConfig, JudgeParams

ATTEMPTS = 2
NO_REPLY = ("cannot be reached", "reply is not JSON", "its reply is")
"""Words of failures without a reply that could be read."""


def check_judge(config: JudgeConfig, question: Question) -> None:
    """Asks a judge one question.

    Raises:
        UsageError: The judge does not work as it is configured; the message says what to change.
        InfrastructureError: The judge cannot be reached or is busy.
    """
    with tempfile.TemporaryDirectory() as scratch:
        params = config.params.model_copy(update={"attempts": min(ATTEMPTS, config.params.attempts)})
        with open_judge(replace(config, params=params, cache=Path(scratch) / "answers.db", account=None)) as judge:
            answer = judge.ask_one(question)
    if answer.verdict is None:
        raise _problem(params, answer)


def _problem(params: JudgeParams, answer: Answer) -> A2rlError:
    """Returns what is wrong with a judge that gave no verdict, and what to do."""
    name, why = params.name or params.model, answer.reason
    if answer.status and (refusal := _refusal(params, name, answer)):
        return UsageError(refusal)
    if answer.status or any(words in why for words in NO_REPLY):
        return InfrastructureError(f"the judge {name} does not answer: {why}; try again later")
    if "log probabilities" in why:
        return UsageError(
            f"the judge {name} gives no log probabilities, which {params.annotator} needs: {why}; choose an annotator "
            "that needs none, such as alpaca_eval_gpt5_2_fn, or an endpoint that gives them"
        )
    return UsageError(
        f"the judge {name} does not answer in the form that {params.annotator} asks for: {why}; choose another model "
        "or annotator"
    )


def _refusal(params: JudgeParams, name: str, answer: Answer) -> str:
    """Returns why an endpoint refuses, and what to do; empty if the refusal may end by itself."""
    why, status, other = answer.reason, answer.status, "or choose another --judge"
    if status in {401, 403}:
        key = f"the key in {params.api_key_env}" if params.api_key_env else "a request without a key (`api_key_env`)"
        return f"the judge {name} refuses {key}: {why}; set a valid one, {other}"
    if status == 404:
        problem = f"the judge {name} is not there: {params.base_url} has no model {params.model}: {why}"
        return f"{problem}; correct `base_url` or `model` in params.yaml, {other}"
    if status == 402 or NO_MORE_QUOTA in why:
        return f"the account of the judge {name} has no quota left: {why}; add to it, {other}"
    if 400 <= status < 500 and not is_retryable_status(status):
        return f"the judge {name} refuses the request: {why}; change its `decoding` or `annotator` in params.yaml"
    return ""
