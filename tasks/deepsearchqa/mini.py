"""The mini variant of deepsearchqa: questions over a generated world, and the text that the base model `tiny` reads.

Contract: everything is a function of its seed. A question asks for a fact about something that another fact identifies,
and so on, with one to four hops ("What is the seat of the employer of Ann Bal?"); every third one asks for several
things (a Set answer). The expert can answer each question by searching. The worlds of the splits share no name
(world.py), so that no chain of facts is in both.

    world = World("eval", seed=0)
    question = next(generate(1, world, Index(world.pages()), seed=0))
"""

import random
from collections.abc import Iterator
from itertools import cycle

from tasks.deepsearchqa.research import Episode, Index, Question, next_turn, observation
from tasks.deepsearchqa.research.episode import observed, transcript
from tasks.deepsearchqa.research.expert import STEP, sentence
from tasks.deepsearchqa.research.match import SET_ANSWER
from tasks.deepsearchqa.world import NAMES, RELATIONS, Kind, Relation, World

SINGLE_ANSWER = "Single Answer"
MAX_HOPS = 4
PRETRAINING_DOCUMENTS = 1200
PAGES_SHARE, NOTES_SHARE, SOLVED_SHARE = 0.2, 0.35, 0.1
"""Shares of the documents: pages, notes, and questions of one hop that the expert answers."""
PRETRAINING_WORLDS = 20
"""Facts differ between worlds, so that a model has to read them instead of memorising them."""
LOOKED_UP = 4
"""Number of facts in a document of notes."""
MAX_RANDOM_LOOKUPS = 3


def generate(count: int, world: World, index: Index, seed: int | str) -> Iterator[Question]:
    """Yields `count` different questions, with one to four hops in turn."""
    rng = random.Random(f"deepsearchqa-mini/questions/{seed}")
    seen: set[str] = set()
    for hops in cycle(range(1, MAX_HOPS + 1)):
        if len(seen) == count:
            return
        wants_set = len(seen) // MAX_HOPS % 3 == 2
        while (question := _draw(rng, world, hops, wants_set)).problem in seen or not _answerable(question, index):
            pass
        seen.add(question.problem)
        yield question


def canonical(text: str) -> str:
    """See `a2rl.task_api.contract.Preparer`: unchanged, since the names in a question decide what to look up."""
    return text


def solve(question: Question, index: Index) -> tuple[Episode, list[tuple[str, str]]]:
    """Returns the expert's episode, and its turns: what it wrote and what the search showed."""
    episode, turns = Episode(question), list[tuple[str, str]]()
    while not episode.over:
        written, shown = next_turn(episode.text), ""
        if (query := episode.take(written)) is not None:
            shown = observation(index.search(query))
            episode.observe(shown)
        turns.append((written, shown))
    return episode, turns


def pretraining_text(seed: int, documents: int = PRETRAINING_DOCUMENTS) -> Iterator[str]:
    """Yields documents that teach what pages, searches and answers look like, but hardly how to find an answer.

    They are pages, notes with look-ups of unrelated facts, and questions with random look-ups that are answered with
    the last result.
    """
    rng = random.Random(f"deepsearchqa-mini/pretraining/{seed}")
    worlds = [World("train", f"pretraining/{seed}/{number}") for number in range(PRETRAINING_WORLDS)]
    indices = [Index(world.pages()) for world in worlds]
    for number in range(documents):
        world, index = worlds[number % PRETRAINING_WORLDS], indices[number % PRETRAINING_WORLDS]
        drawn = rng.random()
        if drawn < PAGES_SHARE:
            yield rng.choice(index.pages).text
        elif drawn < PAGES_SHARE + NOTES_SHARE:
            yield _notes(rng, world, index)
        elif drawn < PAGES_SHARE + NOTES_SHARE + SOLVED_SHARE:
            question = _draw(rng, world, 1, wants_set=rng.random() < 1 / 3)
            yield transcript(question, solve(question, index)[1])
        else:
            yield _random_lookups(rng, world, index)


def _draw(rng: random.Random, world: World, hops: int, wants_set: bool) -> Question:
    """Draws a chain of facts from a random start, without repeated names."""
    kind: Kind = rng.choice(list(NAMES))
    name = start = rng.choice(world.names[kind])
    asked, passed = list[Relation](), [name]
    for _ in range(hops - 1):
        relation = rng.choice([each for each in RELATIONS if each.of == kind and each.target])
        assert relation.target is not None
        asked.append(relation)
        kind, name = relation.target, world.value(relation.name, name)
        passed.append(name)
    last = rng.choice([each for each in RELATIONS if each.of == kind and each.is_set == wants_set])
    answer = world.value(last.name, name)
    if len({*passed, answer}) <= hops:
        return _draw(rng, world, hops, wants_set)
    names = STEP.join(relation.name for relation in reversed([*asked, last]))
    return Question(
        problem=f"What {'are' if wants_set else 'is'} the {names} of {start}?",
        answer_type=SET_ANSWER if wants_set else SINGLE_ANSWER,
        answer=answer,
        category=f"{hops} {'hop' if hops == 1 else 'hops'}",
    )


def _answerable(question: Question, index: Index) -> bool:
    return solve(question, index)[0].answer == question.answer


def _notes(rng: random.Random, world: World, index: Index) -> str:
    turns, learned, _ = _lookups(rng, world, index, LOOKED_UP)
    shown = "".join(f" {written}{observed(shown)}" for written, shown in turns)
    return f"Thought:{shown} {learned}"


def _random_lookups(rng: random.Random, world: World, index: Index) -> str:
    """Looks up random facts, mostly not what was asked for, and answers with the last one."""
    question = _draw(rng, world, rng.randint(1, MAX_HOPS), wants_set=rng.random() < 1 / 3)
    turns, learned, value = _lookups(rng, world, index, rng.randint(1, MAX_RANDOM_LOOKUPS))
    return transcript(question, [*turns, (f"{learned}\nAction: answer[ {value}]", "")])


def _lookups(rng: random.Random, world: World, index: Index, count: int) -> tuple[list[tuple[str, str]], str, str]:
    """Returns turns that look up random facts, the last fact, and its value."""
    turns, learned, value = list[tuple[str, str]](), "", ""
    for _ in range(count):
        relation = rng.choice(RELATIONS)
        name = rng.choice(world.names[relation.of])
        fact, value = f"{relation.name} of {name}", world.value(relation.name, name)
        thought = f"{learned} Now the {fact}.".strip()
        turns.append((f"{thought}\nAction: search[ {fact}]", observation(index.search(fact))))
        learned = sentence(fact, value)
    return turns, learned, value
