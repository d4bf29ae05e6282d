"""An expert for the questions of the mini variant: it looks up one fact after the other, from the innermost outwards.

It goes by what stands in the episode and nothing else, so that it can also go on from where somebody else is stuck. It
puts a space behind a bracket, which counts for nothing: words are then the same tokens there as everywhere else.

    next_turn(episode.text)     # "Now the seat of Balco.\\nAction: search[ seat of Balco]"
"""

import re

STEP = " of the "
"""Between the facts that a question asks for, one in the other."""

_QUESTION = re.compile(r"Question: What (?:is|are) the ([^?]*)\?")
_FACT = re.compile(r"The ([a-z ]+ of [A-Z][\w ]*?) (?:is|are) ([^.|]+)\.")
_OBSERVATION = re.compile(r"^Observation: (.*)$", re.MULTILINE)


def next_turn(text: str) -> str:
    """What the expert writes after the text of an episode.

    Raises:
        ValueError: it is no question of the mini variant.
    """
    asked = _QUESTION.search(text)
    if asked is None:
        raise ValueError(f"no question of the mini variant: {text[:80]!r}")
    known: dict[str, str] = {}
    new: dict[str, str] = {}
    for shown in _OBSERVATION.findall(text):
        new = dict(_FACT.findall(shown))
        known |= new
    steps, learned = asked[1].split(STEP), ""
    while steps[-1] in known:
        fact = steps.pop()
        if not steps:
            return f"{sentence(fact, known[fact])}\nAction: answer[ {known[fact]}]"
        steps[-1] += f" of {known[fact]}"
        learned = f"{sentence(fact, known[fact])} " if fact in new else ""
    return f"{learned}Now the {STEP.join(steps)}.\nAction: search[ {steps[-1]}]"


def sentence(fact: str, value: str) -> str:
    """A fact ("seat of Balco") and its value as the pages say it; of several values they are separated by commas."""
    return f"The {fact} {'are' if ', ' in value else 'is'} {value}."
