"""The judge of the mini variant: exact and set match behind the API of the real judges.

Run as `python -P -m tasks.deepsearchqa.served DESCRIPTOR`, with a listening socket; it ends with its standard input. It
is asked in the same words as a real judge. Stricter than one: a Set answer with an item too many is wrong, since naming
everything there is would otherwise win.
"""

import sys

from a2rl.judge.local import ChatMessage, create_app
from a2rl.serving import serve_for_parent
from tasks.deepsearchqa.annotator import asked_about
from tasks.deepsearchqa.research import compare


def judge(chat: list[ChatMessage]) -> dict[str, float]:
    """How likely each of the two words is. ValueError: there is no answer to judge."""
    about = asked_about(chat[-1].content if chat else "")
    right = compare(about.answer, about.gold, about.answer_type).exact
    return {"correct": float(right), "incorrect": float(not right)}


if __name__ == "__main__":
    serve_for_parent(create_app(judge), int(sys.argv[1]), lifespan="off")
