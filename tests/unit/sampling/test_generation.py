"""Tests how models answer: the settings, and the sampler that applies them to every call of a task."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from pydantic import ValidationError

from a2rl.sampling import Completion, Conversation, Message, SamplingParams
from a2rl.sampling.generation import GeneratingSampler, Generation, answer_in
from tests.fake_sampler import FakeSampler

QWEN3 = Generation(
    temperature=0.6, top_p=0.95, top_k=20, chat_template_kwargs={"enable_thinking": True}, strip_reasoning=True
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("4", "4"),
        ("<think>2 + 2</think>\n\n4", "4"),
        ("2 + 2</think>\n4", "4"),
        ("a<think>b</think>c<think>d</think>e", "ace"),
        ("a</think>b</think> c", "c"),
        ("<think>it never ends, 17", "<think>it never ends, 17"),
        ("    return 4", "    return 4"),
        ("", ""),
    ],
)
def test_reasoning_is_removed_as_in_the_reference(text: str, answer: str) -> None:
    assert answer_in(text) == answer


def test_the_defaults_are_greedy_and_change_nothing_of_a_task() -> None:
    inner = FakeSampler(lambda prompt: "<think>2</think>4", chat=True)
    asked = SamplingParams(max_new_tokens=7, stop=("\n",))
    [completion] = GeneratingSampler(inner, Generation(), seed=0).generate(["2 + 2?"], asked)
    assert completion.text == "<think>2</think>4"
    assert inner.params == [asked]


def test_every_call_is_sampled_as_the_settings_say() -> None:
    inner = FakeSampler(lambda prompt: "4", chat=True)
    sampler = GeneratingSampler(inner, QWEN3.over(Generation(max_new_tokens=99)), seed=3)
    sampler.generate(["2 + 2?"], SamplingParams(max_new_tokens=7, stop=("\n",)))
    sampler.converse([counting()], SamplingParams(max_new_tokens=7))
    for params in inner.params:
        assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.6, 0.95, 20, 3)
        assert params.chat_template_kwargs == {"enable_thinking": True}
        assert params.max_new_tokens == 99


def test_the_room_after_a_prompt_is_that_of_the_chat_as_asked() -> None:
    class Templated(FakeSampler):
        def room_after(self, prompt: Any, chat_template_kwargs: Mapping[str, Any] = {}) -> int:
            return 10 - len(chat_template_kwargs)

    sampler = GeneratingSampler(Templated(lambda prompt: ""), QWEN3, seed=0)
    assert sampler.room_after((Message("user", "a"),)) == 9


def test_a_stop_string_ends_an_answer_only_after_the_reasoning() -> None:
    inner = FakeSampler(lambda prompt: Completion("<think>Question:\n?</think>4\nQuestion: 5", "length", 1, 9))
    [completion] = GeneratingSampler(inner, QWEN3, 0).generate(["a"], SamplingParams(9, stop=("\n", "Question:")))
    assert (completion.text, completion.finish, completion.tokens) == ("4", "stop", 9)
    assert inner.params[0].stop == ()


def counting() -> Conversation[list[str]]:
    """Asks three times, waits for a future, and returns the answers."""
    said = []
    for number in range(3):
        said.append((yield f"{number}?").text)
    future: Future[int] = Future()
    future.set_result(1)
    yield future
    said.append((yield "after").text)
    return said


def test_interactive_episodes_get_answers_without_reasoning() -> None:
    """They may wait for other things."""
    inner = FakeSampler(lambda prompt: f"<think>\n</think>\n\nlook at {prompt}\n> You see")
    [said] = GeneratingSampler(inner, QWEN3, 0).converse([counting()], SamplingParams(9, stop=("\n",)))
    assert said == ["look at 0?", "look at 1?", "look at 2?", "look at after"]


def test_settings_are_read_from_one_word_of_the_command_line() -> None:
    text = "temperature=0.6, top_k=20,chat_template_kwargs.enable_thinking=true,samples=4"
    found = Generation.model_validate(text)
    assert found == Generation(temperature=0.6, top_k=20, samples=4, chat_template_kwargs={"enable_thinking": True})
    assert Generation.model_validate("") == Generation()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("temperature", "not of the form name=value"),
        ("temprature=1", "Extra inputs"),
        ("temperature=-1", "greater than or equal to 0"),
        ("temperature=.nan", "finite"),
        ("top_p=0", "greater than 0"),
        ("top_p=1.5", "less than or equal to 1"),
        ("top_k=-1", "greater than or equal to 0"),
        ("max_new_tokens=0", "greater than or equal to 1"),
        ("samples=0", "greater than or equal to 1"),
        ("samples=4,temperature=0", "need a temperature above 0"),
        ("chat_template_kwargs.tokenize=true", "tokenize is decided by the grader"),
        ("chat_template_kwargs=7", "valid dictionary"),
        ("temperature=[", "is not a value"),
        ("chat_template_kwargs=7,chat_template_kwargs.a=[", "is not a value"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Generation.model_validate(given)


def test_what_is_given_wins_and_the_rest_comes_from_elsewhere() -> None:
    found = Generation(temperature=1.0).over(QWEN3)
    assert found == QWEN3.model_copy(update={"temperature": 1.0})
    assert Generation().over(QWEN3) == QWEN3


def test_settings_of_several_places_must_fit_together() -> None:
    with pytest.raises(ValidationError, match="need a temperature above 0"):
        Generation(samples=4).over(Generation()).complete()


def test_an_agent_and_a_reader_are_told_in_words() -> None:
    assert Generation().in_words() == "greedy; within the task's limit"
    assert "temperature 0.6, top_p 0.95, top_k 20" in QWEN3.in_words()
    assert "enable_thinking=True" in QWEN3.in_words()
    assert Generation().note == ""
    assert "grading again would give another score" in QWEN3.note
    assert "4 for each item" in QWEN3.over(Generation(samples=4)).note
