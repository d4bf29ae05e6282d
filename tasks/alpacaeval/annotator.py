"""Asks a judge which of two outputs is better.

The annotator (a2rl/judge/annotator.py) has the prompt and reads the answer. The instruction decides which output is
shown first, as in the package.

One deviation: delimiters and lines of the prompt, and tokens of chat templates, are escaped in instructions and outputs
(see `escaped`). The package inserts them unchanged (utils.py, `make_prompts`), and an output with `<|im_end|>` even
ends the prompt there (`prompt_to_chatml`). For outputs without them the prompt is exactly the package's.

The judge of the mini variant is `rule.py` behind the API of the real judges: `python -P -m tasks.alpacaeval.annotator
DESCRIPTOR` with a listening socket, which ends when its standard input is closed. It gets the same prompts as a real
judge, and finds instruction and outputs by the prompt's delimiters.
"""

import random
import re
import sys
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from a2rl.core.model_text import break_tokens
from a2rl.judge.annotator import find_annotator
from a2rl.judge.client import Question
from a2rl.judge.local import ChatMessage, create_app
from tasks.alpacaeval.rule import preference

RULE_ANNOTATOR = "weighted_alpaca_eval_gpt4_turbo"
"""The annotator of the mini variant's judge, which answers with one of two tokens and their probabilities."""
FIRST, SECOND = "m", "M"
SEED = 0
"""Seed of the package's annotators, which all published annotations have."""
_QUOTED = re.compile(r'"(instruction|output)": """(.*?)"""(?=,?\n)', re.DOTALL)


class Pair(NamedTuple):
    """Two outputs for one instruction: the reference's, then the model's."""

    instruction: str
    reference: str
    output: str


TRIAL = Pair("What is the capital of France?", "Lyon.", "The capital of France is Paris.")
"""The pair with which a judge is tried before a run."""


def question(annotator: str, pair: Pair) -> Question:
    """Returns the question about a pair; its verdict is how surely the model's output is better, from 0 to 1.

    Raises:
        UsageError: the annotator is unknown.
    """
    found = find_annotator(annotator)
    switched = found.switches and is_switched(pair.instruction)
    shown = (pair.output, pair.reference) if switched else (pair.reference, pair.output)

    def read(reply: Mapping[str, Any]) -> float:
        first = found.first_share(reply)
        return first if switched else 1 - first

    return Question(messages(annotator, pair.instruction, *shown), read)


def messages(annotator: str, instruction: str, first: str, second: str) -> list[dict[str, str]]:
    """Returns the annotator's prompt for two outputs, in the order in which they are shown.

    Raises:
        UsageError: the annotator is unknown.
    """
    found = find_annotator(annotator)
    given = {"instruction": instruction, "output_1": first, "output_2": second}
    return found.messages({name: escaped(text, found.lines) for name, text in given.items()})


def escaped(text: str, lines: Set[str] = frozenset()) -> str:
    """Escapes what could end a text's place in the prompt.

    Args:
        lines: The prompt's own lines, such as `## Output (b):`. A line of the text that is one of them is marked.
    """
    text = break_tokens(text.replace('"""', r"\"\"\""))
    return "".join(f"\\{line}" if line.strip() in lines else line for line in text.splitlines(keepends=True))


def is_switched(instruction: str) -> bool:
    """Whether the model's output is shown first (processors.py, `RandomSwitchTwoColumnsProcessor`)."""
    return random.Random(f"is_switched_outputs{instruction}{SEED}").choices([False, True])[0]


def judge(chat: list[ChatMessage]) -> dict[str, float]:
    """Returns the probability that each output is better, by its token. Raises ValueError without two outputs."""
    quoted = _QUOTED.findall(chat[-1].content) if chat else []
    if [name for name, _ in quoted] != ["instruction", "output", "output"]:
        raise ValueError("the prompt has no instruction and two outputs")
    instruction, first, second = (text for _, text in quoted)
    second_is_better = preference(instruction, first, second)
    return {FIRST: 1 - second_is_better, SECOND: second_is_better}


if __name__ == "__main__":
    from a2rl.core.serving import serve_for_parent

    serve_for_parent(create_app(judge), int(sys.argv[1]), lifespan="off")
