"""Imitate an expert that searches; then answer the training questions and reward right answers.

A model soon memorises the facts of one small web, which does not help with another one; so the names in the examples
are replaced at random. Some of the expert's searches are replaced by wrong ones, which the model does not imitate: it
learns how to go on when a search found nothing useful. Where there are no pages to search (the full variant, which
searches the internet), there is no expert either: the model learns to give the answer in the right form, and its reward
is the F1 of the answer.
"""

import random
import re
import sys
from pathlib import Path
from typing import Any

from routes import CORES, Example, Grpo, Part

NAME = re.compile(r"[A-Z]\w+(?: [A-Z]\w+)?")


class Route:
    """Learns to search and to answer."""

    MISTAKES = 0.1
    """Share of the expert's searches that are replaced by wrong ones."""

    def __init__(self, data: Path, seed: int) -> None:
        sys.path.insert(0, str(data))
        from research import Index, read_pages, read_questions

        questions = read_questions(data / "train.jsonl")
        random.Random(seed).shuffle(questions)
        self.questions = {str(number): question for number, question in enumerate(questions)}
        self.index = Index(read_pages(data / "pages"))
        self.instructions = (data / "prompt.txt").read_text()
        self.seed = seed
        self.namesakes: dict[str, list[str]] = {}
        """All names of the same kind, by name."""
        kinds: dict[str, list[str]] = {}
        for page in self.index.pages:
            kind = page.text.removeprefix(f"{page.title} is a ").partition(".")[0]
            kinds.setdefault(kind, []).append(page.title)
            self.namesakes[page.title] = kinds[kind]

    def examples(self) -> list[Example]:
        """Returns the expert's episodes, or only the answers where there is nothing to search."""
        if not self.index.pages:
            return [self.answered(question) for question in self.questions.values()]
        rng = random.Random(self.seed)
        return [parts for question in self.questions.values() if (parts := self.searched(question, rng))]

    def searched(self, question: Any, rng: random.Random) -> Example:
        """Returns an episode as a text to imitate; an empty tuple where the expert finds no answer in time."""
        from research import Episode, next_turn, observation
        from research.episode import observed

        episode = Episode(question, self.instructions)
        parts = [Part(episode.text, False)]
        while not episode.over:
            written = right = next_turn(episode.text)
            if "search[" in right and rng.random() < self.MISTAKES:
                written = self.mistake(right, rng)
            query = episode.take(written)
            parts.append(Part(f" {written}", written == right))
            if query is not None:
                shown = observation(self.index.search(query))
                episode.observe(shown)
                parts += split_off_label(observed(shown))
        return self.renamed(parts, rng) if episode.answer else ()

    def renamed(self, parts: list[Part], rng: random.Random) -> Example:
        """Returns the example with names replaced by others of the same kind."""
        names: dict[str, str] = {}

        def rename(found: re.Match[str]) -> str:
            name = found[0]
            if name in self.namesakes and name not in names:
                names[name] = rng.choice(self.namesakes[name])
            return names.get(name, name)

        return tuple(Part(NAME.sub(rename, part.text), part.learn) for part in parts)

    def mistake(self, turn: str, rng: random.Random) -> str:
        """Returns the turn with the same thought and a search for something else."""
        thought, _, _ = turn.partition("search[")
        title = rng.choice(self.index.pages).title
        return f"{thought}search[ {title}]"

    def answered(self, question: Any) -> Example:
        """Returns a text that only gives the answer."""
        from research import Episode

        thought = f" I know this.\nAction: answer[{question.answer}]"
        return (Part(Episode(question, self.instructions).text, False), Part(thought, True))

    def grpo(self) -> Grpo:
        """Returns rollouts of the training questions."""
        from rollout import for_trl

        settings: dict[str, Any] = {"instructions": self.instructions, "temperature": 1.0, "seed": self.seed}
        settings["processes"] = CORES
        if not self.index.pages:
            settings |= {"reward": answer_f1, "max_new_tokens": 256}
        rollout = for_trl(self.questions, self.index.search, **settings)
        return Grpo.of_episodes(self.questions, rollout)


def split_off_label(shown: str) -> list[Part]:
    """Splits an observation so that its line break and label are learned: the grader stops generation at them."""
    label, colon, rest = shown.partition(":")
    return [Part(label + colon, True), Part(rest, False)]


def answer_f1(rollout: Any) -> float:
    """Returns the F1 of the answer's items."""
    from research import compare

    match = compare(rollout.answer or "", rollout.question.answer, rollout.question.answer_type)
    return float(match.f1)
