"""Reads which of two outputs a judge prefers: the kinds of parsers that annotator configurations of alpaca-eval name.

A parser returns a list of values. 1: the first output is better, 2: the second one is, and a number between 1 and 2
says how surely. The meaning of each kind is that of `alpaca_eval/completion_parsers.py`. What a judge
says may be influenced by the outputs that it reads, so every text is checked, and no text is evaluated.

    parse("ranking_parser", {"model_1_name": "m"}, "[{'model': 'M', 'rank': 1}, {'model': 'm', 'rank': 2}]")   # [2]
"""

import ast
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from a2rl.core.errors import UsageError, unknown_name
from a2rl.core.model_text import answer_of

MAX_CHARS = 100_000
"""Longer texts are not read."""
SHOWN = 80
DIGITS = 40
MIN_LOGPROB, MAX_LOGPROB = -1e6, 1e-3
"""Valid log probabilities: above 0 only by rounding; some APIs return -9999 for a probability of 0."""
MAX_LINE = 300
_BARE = re.compile(
    r"(?:.*\b(?:verdict|judge?ment|answer|choice|winner|better|best)\b(?: output| model| one)?\W+(?:is\W+)?)?"
    r"\W*?(\(\w\)|\w+)\W*",
    re.IGNORECASE,
)


class UnreadableReplyError(ValueError):
    """The judge answered, but not in the form that was asked for."""


def parse(kind: str, arguments: Mapping[str, Any], completion: Any) -> list[Any]:
    """Reads a completion with a parser.

    Args:
        arguments: Its arguments, as in the annotator's configuration.
        completion: The text; for `logprob_parser`, the choice with its log probabilities.

    Raises:
        UnreadableReplyError: The completion has another form.
    """
    if isinstance(completion, str):
        if not completion.strip():
            raise UnreadableReplyError("the judge's reply is empty")
        if len(completion) > MAX_CHARS:
            raise UnreadableReplyError(f"the judge's reply has more than {MAX_CHARS} characters")
    try:
        return PARSERS[kind](completion, **arguments)
    except UnreadableReplyError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, SyntaxError, RecursionError, MemoryError) as error:
        shown = repr(completion)[:SHOWN] if isinstance(completion, str) else type(completion).__name__
        raise UnreadableReplyError(f"the judge's reply is not in the form asked for: {shown}") from error


def check_parser(kind: str, arguments: Mapping[str, Any]) -> None:
    """Checks that there is such a parser with such arguments.

    Raises:
        UsageError: There is none.
    """
    if kind not in PARSERS:
        raise unknown_name("parser of an annotator", kind, PARSERS)
    try:
        signature(PARSERS[kind]).bind("", **arguments)
        with warnings.catch_warnings():  # a pattern of the package's has an odd set of characters
            warnings.simplefilter("ignore")
            for pattern in (arguments.get("outputs_to_match") or {}).values():
                re.compile(pattern)
    except (TypeError, AttributeError, re.error) as error:
        raise UsageError(f"the arguments of the annotator's {kind} are not valid: {error}") from error
    for inner, its_arguments in (arguments.get("parsers_to_kwargs") or {}).items():
        check_parser(inner, its_arguments or {})


def forms_of(text: str) -> list[str]:
    """Returns what a judge may have meant with a text that says more than it was asked for.

    It is the text without thoughts; then the lists or objects in it, without fences and prose; then its last line, if
    nothing but the answer, or a label such as "Verdict:" and the answer, is in it.
    """
    text = answer_of(text) if len(text) <= MAX_CHARS else text
    within = [text[text.find(begin) : text.rfind(end) + 1] for begin, end in ("{}", "[]") if begin in text]
    lines = [line for line in text[-MAX_CHARS:].split("\n") if re.search(r"\w", line)]
    bare = _BARE.fullmatch(lines[-1][:MAX_LINE]) if lines else None
    return [text, *filter(None, within), *([bare[1]] if bare else [])]


def first_share(values: Sequence[Any]) -> float:
    """Returns how surely the first output is better, from 0 to 1, given what a parser found.

    Raises:
        UnreadableReplyError: The parser found no preference, or several.
    """
    if len(values) != 1:
        raise UnreadableReplyError(f"the judge's reply has {len(values)} preferences instead of one")
    return 2 - bounded_number(values[0], 1, 2, "the judge's preference")


def _regex(completion: str, outputs_to_match: Mapping[Any, str]) -> list[Any]:
    """The keys of all patterns that match, in the order of their matches."""
    patterns = {key: re.compile(pattern) for key, pattern in outputs_to_match.items()}
    found: list[Any] = []
    while completion:
        matches = [(match, key) for key, pattern in patterns.items() if (match := pattern.search(completion))]
        if not matches:
            break
        first, key = min(matches, key=lambda each: each[0].start())
        found.append(key)
        completion = completion[max(first.end(), 1) :]
    return found


def _ranking(completion: Any, model_1_name: str = "model_1") -> list[Any]:
    """The rank of the first model in a list of `{'model': name, 'rank': 1 or 2}`."""
    ranks = ast.literal_eval(completion) if isinstance(completion, str) else completion
    [first, *_] = [each for each in ranks if each["model"] == model_1_name]
    rank = first["rank"]
    if isinstance(rank, bool) or rank not in {1, 2}:
        raise UnreadableReplyError(f"the judge gives the rank {str(rank)[:SHOWN]!r}, not 1 or 2")
    return [rank]


def _json(completion: str, annotation_key: str | None = None) -> list[Any]:
    """The value of a key in a JSON object, or in each object of a JSON list."""
    fenced = re.search(r"```json(.*?)```", completion, re.DOTALL)
    found = json.loads(fenced[1] if fenced else completion)
    rows = [found] if isinstance(found, dict) else found
    return [row[annotation_key] if annotation_key is not None else row for row in rows]


def _logprob(
    completion: Mapping[str, Any],
    numerator_token: str,
    denominator_tokens: Sequence[str],
    is_binarize: bool = True,
    log_prob_index: str | int = "batch",
) -> list[Any]:
    """The probability of one token, divided by that of all tokens that would be an answer.

    Only the log probabilities at one position count; the text is ignored. Several tokens may have the same text, such
    as a letter with a mark for the space before it, without it, and as a byte; they are one answer.
    """
    position = 0 if log_prob_index == "batch" else int(log_prob_index)
    wanted = {numerator_token, *denominator_tokens}
    try:
        top = completion["logprobs"]["content"][position]["top_logprobs"]
        said = [(each["token"], each["logprob"]) for each in top if each["token"] in wanted]
    except (LookupError, TypeError, ValueError) as error:
        raise UnreadableReplyError("the judge's reply has no log probabilities") from error
    if not said:
        names = " nor ".join(dict.fromkeys((numerator_token, *denominator_tokens)))
        raise UnreadableReplyError(f"the judge's answer token is neither {names}")
    known = [
        (token, bounded_number(each, MIN_LOGPROB, MAX_LOGPROB, f"the log probability of {token}"))
        for token, each in said
    ]
    highest = max(logprob for _, logprob in known)
    weights = dict.fromkeys(wanted, 0.0)
    for token, logprob in known:
        weights[token] += math.exp(logprob - highest)
    own = weights[numerator_token]
    if is_binarize:
        return [1 if all(own > weights[each] for each in denominator_tokens if each != numerator_token) else 2]
    every = sum(weights[each] for each in denominator_tokens)
    return [2 - min(1.0, own / every)] if every else [1]


def _pipeline(
    completion: Any, parsers_to_kwargs: Mapping[str, Mapping[str, Any]], is_squeeze: bool = True, depth: int = 0
) -> list[Any]:
    """Several parsers one after the other; each reads every value that the previous one returns."""
    (kind, arguments), *others = parsers_to_kwargs.items()
    found = parse(kind, arguments or {}, completion)
    if others:
        found = [_pipeline(each, dict(others), is_squeeze, depth + 1) for each in found]
    return found[0] if is_squeeze and len(found) == 1 and depth else found


Parser = Callable[..., list[Any]]
PARSERS: dict[str, Parser] = {
    "regex_parser": _regex,
    "ranking_parser": _ranking,
    "json_parser": _json,
    "logprob_parser": _logprob,
    "pipeline_meta_parser": _pipeline,
}


def bounded_number(value: object, low: float, high: float, what: str) -> float:
    """Returns the value if it is a number from `low` to `high`; NaN, infinity, booleans and text are not.

    Raises:
        UnreadableReplyError: The value is not such a number; the message shows it.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        shown = repr(value)[:DIGITS] if not isinstance(value, int) or abs(value) < 10**DIGITS else "a huge number"
        raise UnreadableReplyError(f"{what} is {shown}, not a number from {low:g} to {high:g}")
    return float(value)
