"""The judge of the mini variant: exact and set match behind the API of the real judges.

Run as `python -P -m tasks.deepsearchqa.served DESCRIPTOR`, with a listening socket; it ends when its standard input is
closed. It gets the same prompts as a real judge, but is stricter: a Set answer with an additional item is wrong, since
a model could otherwise win by naming everything.
"""

import sys

from a2rl.core.serving import serve_for_parent
from a2rl.judge.local import ChatMessage, create_app
from tasks.deepsearchqa.annotator import asked_about
from tasks.deepsearchqa.research import compare


def judge(chat: list[ChatMessage]) -> dict[str, float]:
    """Returns the probability of each of the two words. Raises ValueError if there is no answer to judge."""
    about = asked_about(chat[-1].content if chat else "")
    right = compare(about.answer, about.gold, about.answer_type).exact
    return {"correct": float(right), "incorrect": float(not right)}


if __name__ == "__main__":
    serve_for_parent(create_app(judge), int(sys.argv[1]), lifespan="off")
