"""The judge of the mini variant: `rule.py` behind the API of the real judges.

Run as `python -P -m tasks.alpacaeval.served DESCRIPTOR`, with a listening socket; it ends when its standard input is
closed. It gets the same prompts as a real judge, and finds instruction and outputs by the prompt's delimiters.
"""

import re
import sys

from a2rl.core.serving import serve_for_parent
from a2rl.judge.local import ChatMessage, create_app
from tasks.alpacaeval.annotator import FIRST, SECOND
from tasks.alpacaeval.rule import preference

_QUOTED = re.compile(r'"(instruction|output)": """(.*?)"""(?=,?\n)', re.DOTALL)


def judge(chat: list[ChatMessage]) -> dict[str, float]:
    """Returns the probability that each output is better, by its token. Raises ValueError without two outputs."""
    quoted = _QUOTED.findall(chat[-1].content) if chat else []
    if [name for name, _ in quoted] != ["instruction", "output", "output"]:
        raise ValueError("the prompt has no instruction and two outputs")
    instruction, first, second = (text for _, text in quoted)
    second_is_better = preference(instruction, first, second)
    return {FIRST: 1 - second_is_better, SECOND: second_is_better}


if __name__ == "__main__":
    serve_for_parent(create_app(judge), int(sys.argv[1]), lifespan="off")
