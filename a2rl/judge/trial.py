"""Tries a judge with one question before anything depends on it, and says in one line what is wrong and how to fix it.

The outcome is kept for a few minutes and shared by all processes of the checkout, so that a suite of many runs asks
once. The question is not taken from the cache of answers: the point is whether the judge answers now.

    check_judge(JudgeConfig.by(params, settings), question, settings)
"""

import hashlib
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import digest_of, write_atomically
from a2rl.core.locks import file_lock
from a2rl.core.retries import is_retryable_status
from a2rl.core.settings import Settings
from a2rl.judge.client import NO_MORE_QUOTA, Answer, Question
from a2rl.judge.local import open_judge
from a2rl.judge.params import JudgeConfig, JudgeParams

KEEP_GOOD_S, KEEP_BAD_S = 600.0, 60.0
"""How long an outcome is valid: short for a failure, so that the user can mend it and try again."""
ATTEMPTS = 2
NO_REPLY = ("cannot be reached", "reply is not JSON", "its reply is")
"""Words of failures without a reply that could be read."""
WAIT_S = 1800.0
"""How long to wait while another process tries the same judge."""


def check_judge(config: JudgeConfig, question: Question, settings: Settings) -> None:
    """Asks a judge one question, unless it was tried a short time ago.

    Raises:
        UsageError: The judge does not work as it is configured; the message says what to change.
        InfrastructureError: The judge cannot be reached or is busy.
    """
    path, key = settings.judge_checks, _key(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_suffix(".lock"), "another run tries the judge", WAIT_S):
        known = _read(path)
        outcome = known.get(key)
        if outcome is None or not _is_valid(outcome):
            outcome = {"at": time.time(), **_try(config, question)}
            kept = {name: each for name, each in known.items() if _is_valid(each)}
            write_atomically(path, json.dumps({**kept, key: outcome}))
    if outcome["problem"]:
        kind = InfrastructureError if outcome["is_temporary"] else UsageError
        raise kind(outcome["problem"])


def _try(config: JudgeConfig, question: Question) -> dict[str, Any]:
    """Asks once, without the cache; returns the problem and whether it may end by itself."""
    with tempfile.TemporaryDirectory() as scratch:
        params = config.params.model_copy(update={"attempts": min(ATTEMPTS, config.params.attempts)})
        alone = replace(config, params=params, cache=Path(scratch) / "answers.db", account=None)
        try:
            with open_judge(alone) as judge:
                answer = judge.ask_one(question)
        except InfrastructureError as error:
            return {"problem": str(error), "is_temporary": True}
    if answer.verdict is not None:
        return {"problem": "", "is_temporary": False}
    return _problem(config.params, answer)


def _problem(params: JudgeParams, answer: Answer) -> dict[str, Any]:
    """Returns what is wrong with a judge that gave no verdict, and what to do."""
    name, why = params.name or params.model, answer.reason
    if answer.status and (mended := _mend_refusal(params, name, answer)):
        return mended
    if answer.status or any(words in why for words in NO_REPLY):
        return {"problem": f"the judge {name} does not answer: {why}; try again later", "is_temporary": True}
    if "log probabilities" in why:
        advice = "choose an annotator that needs none, such as alpaca_eval_gpt5_2_fn, or an endpoint that gives them"
        return _mend(f"the judge {name} gives no log probabilities, which {params.annotator} needs: {why}", advice)
    problem = f"the judge {name} does not answer in the form that {params.annotator} asks for: {why}"
    return _mend(problem, "choose another model or annotator")


def _mend_refusal(params: JudgeParams, name: str, answer: Answer) -> dict[str, Any] | None:
    """Returns why an endpoint refuses, and what to do; None if the refusal may end by itself."""
    why, status, other = answer.reason, answer.status, "or choose another --judge"
    if status in {401, 403}:
        key = f"the key in {params.api_key_env}" if params.api_key_env else "a request without a key (`api_key_env`)"
        return _mend(f"the judge {name} refuses {key}: {why}", f"set a valid one, {other}")
    if status == 404:
        problem = f"the judge {name} is not there: {params.base_url} has no model {params.model}: {why}"
        return _mend(problem, f"correct `base_url` or `model` in params.yaml, {other}")
    if status == 402 or NO_MORE_QUOTA in why:
        return _mend(f"the account of the judge {name} has no quota left: {why}", f"add to it, {other}")
    if 400 <= status < 500 and not is_retryable_status(status):
        advice = "change its `decoding` or `annotator` in params.yaml"
        return _mend(f"the judge {name} refuses the request: {why}", advice)
    return None


def _mend(problem: str, advice: str) -> dict[str, Any]:
    return {"problem": f"{problem}; {advice}", "is_temporary": False}


def _key(config: JudgeConfig) -> str:
    """Returns the digest of all that the outcome depends on. The key itself is not stored."""
    secret = hashlib.sha256((config.api_key or "").encode()).hexdigest()
    return digest_of([config.params.identity(), config.params.base_url, str(config.served), secret])


def _is_valid(outcome: dict[str, Any]) -> bool:
    age_s = time.time() - float(outcome["at"])
    return 0 <= age_s < (KEEP_BAD_S if outcome["problem"] else KEEP_GOOD_S)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the stored outcomes; none if the file is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {key: each for key, each in found.items() if {"at", "problem", "is_temporary"} <= each.keys()}
    except (OSError, ValueError, AttributeError):
        return {}
