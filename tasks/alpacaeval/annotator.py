"""How a judge is asked which of two outputs is better, and how its answer is read.

The annotator is AlpacaEval 2.0's `weighted_alpaca_eval_gpt4_turbo`: its prompt is read from the installed package, the
judge says one token, `m` for the output shown first or `M` for the other, and the log probabilities of the two tokens
are the preference. Which output is shown first follows from the instruction, as in the package.

One deviation: what could pass for the prompt's own delimiters is escaped in instructions and outputs (see `escaped`).
The package inserts them as they are (utils.py, `make_prompts`), and an output with `<|im_end|>` in it even ends the
prompt there (`prompt_to_chatml`). Outputs without delimiters are asked about in exactly the package's words.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from a2rl.errors import UsageError
from a2rl.judge.client import Question, Unreadable
from a2rl.number import number
from tasks.alpacaeval import package

ANNOTATOR = "weighted_alpaca_eval_gpt4_turbo"
TEMPLATES = {ANNOTATOR: "alpaca_eval_clf_gpt4_turbo/alpaca_eval_clf.txt"}
"""The annotators that are known here, with their prompts (in the package's evaluators_configs/)."""
FIRST, SECOND = "m", "M"
LEAST, ROUNDING = -1e6, 1e-3
"""Log probabilities are from the one to the other: never above 0 but for rounding, and some APIs say -9999 for none."""
SEED = 0
"""Of the package's annotators, as of all published annotations."""

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_FIELD = re.compile(r"\{(instruction|output_1|output_2)\}")


class Pair(NamedTuple):
    """Two outputs for one instruction: the reference's, then the model's."""

    instruction: str
    reference: str
    output: str


def question(annotator: str, pair: Pair) -> Question:
    """What the judge is asked about a pair; the verdict is how surely the model's output is the better one, 0 to 1."""
    switched = is_switched(pair.instruction)
    shown = (pair.output, pair.reference) if switched else (pair.reference, pair.output)

    def read(reply: Mapping[str, Any]) -> float:
        first = first_is_better(reply)
        return first if switched else 1 - first

    return Question(messages(annotator, pair.instruction, *shown), read)


def messages(annotator: str, instruction: str, first: str, second: str) -> list[dict[str, str]]:
    """The annotator's prompt about two outputs, in the order in which they are shown.

    Raises:
        UsageError: there is no such annotator.
    """
    fields = {"instruction": escaped(instruction), "output_1": escaped(first), "output_2": escaped(second)}
    return [
        {"role": role, "content": _FIELD.sub(lambda match: fields[match[1]], text)} for role, text in _turns(annotator)
    ]


@cache
def _turns(annotator: str) -> Sequence[tuple[str, str]]:
    if annotator not in TEMPLATES:
        raise UsageError(f"no annotator {annotator!r}: `judge.annotator` in params.yaml may be {', '.join(TEMPLATES)}")
    text = (package.folder() / "evaluators_configs" / TEMPLATES[annotator]).read_text(encoding="utf-8")
    return [(role, content.strip()) for role, content in _TURN.findall(text)]


def escaped(text: str) -> str:
    """The text without the prompt's delimiters: three quotation marks, and what begins and ends a turn of a chat."""
    return text.replace('"""', r"\"\"\"").replace("<|", r"<\|")


def is_switched(instruction: str) -> bool:
    """Whether the model's output is shown first (processors.py, `RandomSwitchTwoColumnsProcessor`)."""
    return random.Random(f"is_switched_outputs{instruction}{SEED}").choices([False, True])[0]


def first_is_better(reply: Mapping[str, Any]) -> float:
    """How surely the output shown first is the better one: the share of `m` in the probability of `m` and `M`.

    Only the log probabilities of the first token count (completion_parsers.py, `logprob_parser`); a text, however it
    is put, has no say.

    Raises:
        Unreadable: there are none, or neither token is among them.
    """
    try:
        top = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        said = {each["token"]: each["logprob"] for each in top if each["token"] in (FIRST, SECOND)}
    except (LookupError, TypeError, ValueError) as error:
        raise Unreadable("the judge's reply has no log probabilities") from error
    if not said:
        raise Unreadable(f"the judge's first token is neither {FIRST} nor {SECOND}")
    try:
        found = {
            token: number(each, LEAST, ROUNDING, f"the log probability of {token}") for token, each in said.items()
        }
    except ValueError as error:
        raise Unreadable(str(error)) from error
    highest = max(found.values())
    weights = {token: math.exp(logprob - highest) for token, logprob in found.items()}
    return weights.get(FIRST, 0.0) / sum(weights.values())
