"""An expert for the questions of the mini variant: it looks up one fact after the other, from the innermost outwards.

It uses the text of the episode only, so that it can also continue an episode of another player. It writes a space after
a bracket, which has no effect except that words have the same tokens there as elsewhere.

    next_turn(episode.text)     # "Now the seat of Balco.\\nAction: search[ seat of Balco]"
"""

import re

STEP = " of the "
"""Separates the nested facts of a question."""

_QUESTION = re.compile(r"Question: What (?:is|are) the ([^?]{0,500})\?")
_FACT = re.compile(r"The ([a-z ]{1,60} of [A-Z][\w ]{0,60}?) (?:is|are) ([^.|]{1,300})\.")
_OBSERVATION = re.compile(r"^Observation: (.*)$", re.MULTILINE)


def next_turn(text: str) -> str:
    """Returns what the expert writes after the text of an episode.

    Raises:
        ValueError: the question is not one of the mini variant.
    """
    asked = _QUESTION.search(text)
    if asked is None:
        raise ValueError(f"not a question of the mini variant: {text[:80]!r}")
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
    """Returns a fact ("seat of Balco") with its value, or with its values separated by commas, as pages say it."""
    return f"The {fact} {'are' if ', ' in value else 'is'} {value}."
