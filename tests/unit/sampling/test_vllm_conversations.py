"""Tests which conversations may ask a vLLM worker, with an engine in the test that counts what it reads."""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from a2rl.sampling import Completion, Conversation
from a2rl.sampling.vllm_conversations import Conversations, PromptRequest

SEEN, WRITTEN = 17, 8
"""The tokens of an observation and of an answer."""


def play(first: str, turns: int) -> Conversation[str]:
    """A conversation whose tokens are its characters, and whose prompts contain the whole history."""
    text = first
    for _ in range(turns):
        completion = yield text
        text += completion.text + "o" * SEEN
    return text


class Engine:
    """Answers all that is asked together, and keeps what is newest: the oldest conversations lose their ends first."""

    def __init__(self, room: int, shared: int = 0) -> None:
        self._room, self._shared = room, shared
        self._cache: OrderedDict[int, int] = OrderedDict()
        self.read = 0
        self.rounds: list[list[int]] = []

    def run(self, work: Conversations[Any]) -> list[Any]:
        while True:
            asked = work.asked()
            if not asked and not work.wait_for_futures():
                return work.results()
            self.rounds.append([each.conversation for each in asked])
            for each in asked:
                self._answer(work, each)

    def _answer(self, work: Conversations[Any], asked: PromptRequest) -> None:
        length = len(asked.prompt)
        shared = self._shared if self._cache else 0
        cached = max(self._cache.pop(asked.conversation, 0), shared)
        self.read += length - cached
        self._cache[asked.conversation] = length + WRITTEN
        self._forget(sum(each - self._shared for each in self._cache.values()) + self._shared - self._room)
        completion = Completion("w" * WRITTEN, "stop", prompt_tokens=length, tokens=WRITTEN)
        work.answer(asked.conversation, completion, cached)

    def _forget(self, tokens: int) -> None:
        for index, held in list(self._cache.items()):
            gone = min(max(tokens, 0), held - self._shared)
            self._cache[index], tokens = held - gone, tokens - gone


def run(engine: Engine, room: int | None, conversations: list[Conversation[Any]]) -> list[Any]:
    return engine.run(Conversations(conversations, 0, room, lambda: None))


def many(count: int = 24, turns: int = 20, first: int = 50) -> list[Conversation[str]]:
    return [play("p" * first, turns) for _ in range(count)]


LONGEST = 50 + 20 * (SEEN + WRITTEN)


def test_too_many_conversations_are_not_read_again_every_turn() -> None:
    """They do not fit into the cache together."""
    at_best, in_turn, all_at_once = Engine(24 * LONGEST), Engine(6 * LONGEST), Engine(6 * LONGEST)
    texts = run(at_best, None, many())
    assert run(all_at_once, None, many()) == texts
    assert run(in_turn, 6 * LONGEST, many()) == texts
    assert all_at_once.read > 12 * at_best.read
    assert in_turn.read < 3 * at_best.read


def test_conversations_that_fit_go_on_side_by_side() -> None:
    engine = Engine(24 * (LONGEST + WRITTEN))
    run(engine, 24 * (LONGEST + WRITTEN), many())
    assert engine.rounds[:20] == [list(range(24))] * 20


def test_the_others_follow_as_the_first_ones_end() -> None:
    engine = Engine(6 * LONGEST)
    run(engine, 6 * LONGEST, many())
    assert engine.rounds[0] == list(range(24))
    assert all(each == sorted(each) for each in engine.rounds)
    ended = [max(place for place, each in enumerate(engine.rounds) if index in each) for index in range(24)]
    assert ended == sorted(ended)


def test_what_conversations_have_in_common_takes_room_once() -> None:
    room = 500 + 24 * (LONGEST - 50 + WRITTEN)
    engine = Engine(room, shared=500)
    run(engine, room, many(first=500))
    assert engine.rounds[10] == list(range(24))


@pytest.mark.parametrize("room", [1, 100])
def test_a_conversation_larger_than_the_cache_goes_on_alone(room: int) -> None:
    engine = Engine(room)
    assert [len(text) for text in run(engine, room, many(3, turns=4))] == [50 + 4 * (SEEN + WRITTEN)] * 3
    assert engine.rounds[0] == [0, 1, 2]
    assert all(len(each) == 1 for each in engine.rounds[1:] if each)


def test_prompts_without_a_next_turn_are_all_asked_at_once() -> None:
    engine = Engine(10)
    run(engine, 10, many(100, turns=1))
    assert engine.rounds[0] == list(range(100))


def test_a_waiting_conversation_keeps_its_place() -> None:
    """No one waits for ever."""
    with ThreadPoolExecutor(1) as threads:

        def searching() -> Conversation[str]:
            text = "p" * 50
            for _ in range(3):
                completion = yield text
                found: Future[str] = threads.submit(str, "o")
                yield found
                text += completion.text + found.result()
            return text

        engine = Engine(60)
        texts = run(engine, 60, [searching() for _ in range(5)])
    assert [len(text) for text in texts] == [50 + 3 * (WRITTEN + 1)] * 5
