"""Imitate an expert that searches; then answer the training questions and reward right answers.

A model soon memorises the facts of one small web, which does not help with another one; so the names in the examples
are replaced at random. Some of the expert's searches are replaced by wrong ones, which the model does not imitate: it
learns how to go on when a search found nothing useful. Where there are no pages to search (the full variant, which
searches the internet), there is no expert either: the model learns to give the answer in the right form, and its reward
is the F1 of the answer.
"""

import random
import re
from typing import Any

from routes import BaseRoute, Example, Part, Setting

NAME = re.compile(r"[A-Z]\w+(?: [A-Z]\w+)?")


class Route(BaseRoute):
    """Learns to search and to answer."""

    MISTAKES = 0.1
    """Share of the expert's searches that are replaced by wrong ones."""

    def __init__(self, setting: Setting) -> None:
        from research import Index, read_pages, read_questions
        from research.episode import REFERENCE_INSTRUCTIONS
        from rollout import ACTIONS

        data, self.faithful = setting.data, setting.meta["options"]["prompts"] == "faithful"
        self.questions = {str(number): each for number, each in enumerate(read_questions(data / "train.jsonl"))}
        self.names = list(self.questions)
        self.random = random.Random(setting.seed)
        self.random.shuffle(self.names)
        self.index = Index(read_pages(data / "pages"))
        self.instructions = REFERENCE_INSTRUCTIONS if self.faithful else (data / "prompt.txt").read_text()
        self.max_steps = setting.meta["max_steps"]
        self.play_settings = {"turns": ACTIONS}
        self.namesakes: dict[str, list[str]] = {}
        """All names of the same kind, by name."""
        kinds: dict[str, list[str]] = {}
        for page in self.index.pages:
            kind = page.text.removeprefix(f"{page.title} is a ").partition(".")[0]
            kinds.setdefault(kind, []).append(page.title)
            self.namesakes[page.title] = kinds[kind]

    def example(self, name: str) -> Example | None:
        """Returns the expert's episode, if it finds an answer; where there is nothing to search, only the answer."""
        from research import Episode, next_turn, observation
        from research.episode import observed

        question = self.questions[name]
        episode = Episode(question, self.instructions, self.max_steps, self.faithful)
        example = Example(episode.text, [])
        if not self.index.pages:
            example.parts.append(Part(f" I know this.\nAction: answer[{question.answer}]", True))
            return example
        while not episode.over:
            written = right = next_turn(episode.text)
            if "search[" in right and self.random.random() < self.MISTAKES:
                written = self.mistake(right)
            query = episode.take(written)
            example.parts.append(Part(f" {written}", written == right))
            if query is not None:
                shown = observation(self.index.search(query))
                episode.observe(shown)
                example.parts += split_off_label(observed(shown))
        return self.renamed(example) if episode.answer else None

    def renamed(self, example: Example) -> Example:
        """Returns the example with names replaced by others of the same kind."""
        names: dict[str, str] = {}

        def rename(found: re.Match[str]) -> str:
            name = found[0]
            if name in self.namesakes and name not in names:
                names[name] = self.random.choice(self.namesakes[name])
            return names.get(name, name)

        prompt = NAME.sub(rename, example.prompt)
        return Example(prompt, [Part(NAME.sub(rename, part.text), part.learn) for part in example.parts])

    def mistake(self, turn: str) -> str:
        """Returns the turn with the same thought and a search for something else."""
        thought, _, _ = turn.partition("search[")
        title = self.random.choice(self.index.pages).title
        return f"{thought}search[ {title}]"

    def environment(self, name: str) -> Any:
        """Returns a question; a right answer is worth 1, and where there is nothing to search, its F1."""
        from rollout import QuestionEnvironment

        worth = None if self.index.pages else answer_f1
        asked = self.questions[name], self.index.search, self.instructions, self.max_steps
        return QuestionEnvironment(*asked, reward=worth, faithful=self.faithful)


def split_off_label(shown: str) -> list[Part]:
    """Splits an observation so that its line break and label are learned: the grader stops generation at them."""
    label, colon, rest = shown.partition(":")
    return [Part(label + colon, True), Part(rest, False)]


def answer_f1(question: Any, answer: str) -> float:
    """Returns the F1 of the answer's items."""
    from research import compare

    return float(compare(answer, question.answer, question.answer_type).f1)
