r"""The text of working on a question: the ReAct loop (Yao et al. 2022, arXiv 2210.03629).

Contract: the model continues `text`, which ends with "Thought:", with a thought and an action:

    Question: What is the seat of the employer of Ann Bal?
    Answer type: Single Answer

    Thought: Now the seat of the employer of Ann Bal.
    Action: search[employer of Ann Bal]
    Observation: The employer of Ann Bal is Dortex. | The employer of Ann Bor is Calmex.
    Thought: The employer of Ann Bal is Dortex. Now the seat of Dortex.
    Action: search[seat of Dortex]
    Observation: ...
    Thought: The seat of Dortex is Fenby.
    Action: answer[Fenby]

After a turn without an action comes "Action: answer[", which the model completes. An action in a thought such as
`<think>...</think>` is none, but the model goes on to read what it thought. The loop is the reference's
(autorl_bench/benchmarks/deepsearchqa/eval.py, `_react_loop`) with one correction: the reference stops generation at
"\nAction:", so that a model that follows the format never searches. See STOPS.

The expert (`next_turn`) answers the questions of the mini variant: it looks up one fact after the other, from the
innermost outwards. It uses the text of the episode only, so that it can also continue an episode of another player. It
writes a space after a bracket, which has no effect except that words have the same tokens there as elsewhere.
"""

import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from a2rl.core.model_text import answer_of, without_thoughts

from .index import Hit

INSTRUCTIONS = """\
Answer the question with the help of a search engine. Write a line that begins with Thought: and says what you need,
then a line with one action:
Action: search[what to look up]
Action: answer[the answer alone]
Answer as soon as you know. For a Set Answer give all items, separated by commas.

"""
"""The text before a question of the full variant; its prompt.txt."""
REFERENCE_INSTRUCTIONS = """\
You are a research assistant that answers questions by searching the web.

You must follow this format strictly:
Thought: [your reasoning]
Action: search[your search query]   <- to search the web
  OR
Action: answer[Paris]   <- to give final answer

Rules:
- Always start with a Thought
- Use search[] to find information
- Use answer[] ONLY when you have enough information
- For Set Answer questions, list all items separated by commas
- Be concise and factual


"""
"""The reference's, for the option `prompts: faithful`."""
MAX_STEPS = 6
"""Maximum number of turns of the model, including its answer."""
STOPS = ("\nObservation:", "\nThought:")
REFERENCE_STOPS = ("\nAction:", *STOPS)
"""As in the reference: an action counts only on the line of its thought."""
FORCED = "\nAction: answer["
NOTHING_FOUND = "No results found."
SNIPPET_SHOWN = 300

LONGEST_QUERY = 500
"""Characters of a query that are searched for."""

STEP = " of the "
"""Separates the nested facts of a question."""

_QUESTION = re.compile(r"Question: What (?:is|are) the ([^?]{0,500})\?")
_FACT = re.compile(r"The ([a-z ]{1,60} of [A-Z][\w ]{0,60}?) (?:is|are) ([^.|]{1,300})\.")
_OBSERVATION = re.compile(r"^Observation: (.*)$", re.MULTILINE)
_ACTION = re.compile(r"Action:\s*(search|answer)\[")
_FORCED_END = re.compile(r"[\]\n]")


class Question(NamedTuple):
    """A row of the data set."""

    problem: str
    answer_type: str
    """Single Answer or Set Answer."""
    answer: str
    category: str = ""


def read_questions(path: Path) -> list[Question]:
    """Reads the questions of a *.jsonl file with the columns of the data set."""
    rows = map(json.loads, io.StringIO(path.read_text(encoding="utf-8")))
    return [Question(row["problem"], row["answer_type"], row["answer"], row["problem_category"]) for row in rows]


def observation(hits: Iterable[Hit]) -> str:
    """Returns the snippets of a search, each in one line, so that none can imitate a turn of the episode."""
    snippets = (" ".join(hit.snippet.split())[:SNIPPET_SHOWN] for hit in hits)
    return " | ".join(filter(None, snippets)) or NOTHING_FOUND


class Episode:
    """Works on a question until it is answered, or no turn is left."""

    def __init__(
        self, question: Question, instructions: str = "", max_steps: int = MAX_STEPS, faithful: bool = False
    ) -> None:
        """Begins with the question.

        Args:
            faithful: Whether thoughts are read like all else, as in the reference.
        """
        self.text = f"{instructions}Question: {question.problem}\nAnswer type: {question.answer_type}\n\nThought:"
        self.answer: str | None = None
        self.queries: list[str] = []
        self.steps = 0
        self.forced = False
        """Whether the last turn had no action: the next one completes "Action: answer["."""
        self._max_steps, self._faithful = max_steps, faithful

    @property
    def over(self) -> bool:
        """Whether the question is answered, or no turn is left."""
        return self.answer is not None or (self.steps >= self._max_steps and not self.forced)

    def take(self, written: str) -> str | None:
        """Appends what the model wrote after `text`; returns the query if it was a search."""
        if self.forced:
            self.answer, self.forced = _FORCED_END.split(self._said(written))[0].strip(), False
            return None
        self.steps += 1
        action = _action(written, self._faithful)
        if action is None:
            self.text, self.forced = f"{self.text} {written.strip()}{FORCED}", True
            return None
        self.text += f" {written[: action.end].strip()}"
        if action.kind == "answer":
            self.answer = self._said(action.content).strip()
            return None
        self.queries.append(action.content.strip()[:LONGEST_QUERY])
        return self.queries[-1]

    def observe(self, text: str) -> None:
        """Appends the result of a search."""
        self.text += observed(text)

    def _said(self, written: str) -> str:
        return written if self._faithful else answer_of(written)


def observed(text: str) -> str:
    """Returns the text after a search in the episode."""
    return f"\nObservation: {text}\nThought:"


def has_action(written: str) -> bool:
    """Whether a turn has an action."""
    return _action(written) is not None


class _Action(NamedTuple):
    kind: str
    content: str
    end: int


def _action(written: str, faithful: bool = False) -> _Action | None:
    """Returns the first action of a turn: something in brackets, up to the first closing one."""
    written = written if faithful else without_thoughts(written, " ")
    begun = _ACTION.search(written)
    end = written.find("]", begun.end() + 1) if begun else -1
    return _Action(begun[1], written[begun.end() : end], end + 1) if begun and end >= 0 else None


def transcript(question: Question, turns: Sequence[tuple[str, str]], instructions: str = "") -> str:
    """Returns the text of an episode, given pairs of what the model wrote and what it was shown ("" at the end)."""
    text = Episode(question, instructions).text
    return text + "".join(f" {written}{observed(shown) if shown else ''}" for written, shown in turns)


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
