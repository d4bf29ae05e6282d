"""Tests the rollouts that the agent gets for online RL: their tokens, masks and probabilities are exact."""

from pathlib import Path

import pytest

from tasks.deepsearchqa import mini
from tasks.deepsearchqa.mini import World
from tasks.deepsearchqa.prepare import copy_tools
from tasks.deepsearchqa.research import Index
from tests.rollout_script import all_is_well
from tests.small_model import build_base_model

SCRIPT = """
data, model, tokenizer = data_and_model()
model.config.max_position_embeddings = 100_000  # the expert works longer than the model can read
import episodes
from rollout import ACTIONS, QuestionEnvironment
from decoder import Written
from research import Episode, Index, compare, next_turn, observation, read_pages, read_questions

index, questions = Index(read_pages(data / "pages")), read_questions(data / "train.jsonl")
settings = {"max_steps": 3, "max_new_tokens": 5, "temperature": 1.0}
def work_on(questions, max_steps=6, **settings):
    work = [QuestionEnvironment(question, index.search, max_steps=max_steps) for question in questions]
    return episodes.play(model, tokenizer, work, turns=ACTIONS, max_steps=max_steps, **settings)
for each in checked(lambda: work_on(questions * 2, **settings), model, 3 * 5):
    assert tokenizer.decode(each.prompt) == Episode(each.environment.question).text
    assert each.reward < 1


class ExpertDecoder:
    "Writes what the expert would, in place of the model."

    def __init__(self, *_): pass

    def run(self, conversations, decoding, stops):
        return [self.play(each, stops) for each in conversations]

    def play(self, conversation, stops):
        turn = next(conversation)
        try:
            while True:
                tokens = tokenizer(" " + next_turn(tokenizer.decode(turn.tokens)))["input_ids"]
                assert stops([tokens, tokens[:-1]]) == [True, False]
                turn = conversation.send(Written(tokens, True, [-0.5] * len(tokens)))
        except StopIteration as end:
            return end.value


episodes.Decoder = ExpertDecoder
for each in work_on(questions, max_new_tokens=400):
    episode = Episode(each.environment.question)
    while not episode.over:
        if (query := episode.take(next_turn(episode.text))) is not None:
            episode.observe(observation(index.search(query)))
    assert each.reward == 1 and each.environment.episode.queries == episode.queries
    assert tokenizer.decode(each.prompt + each.tokens) == episode.text, "as the grader would show it"
    shown = tokenizer.decode([token for token, own in zip(each.tokens, each.written) if not own])
    assert shown.count("Observation: ") == shown.count("Thought:") == len(episode.queries)
    assert all((logprob == -0.5) == (own == 1) for logprob, own in zip(each.logprobs, each.written))

for faithful, answer in ((False, "b"), (True, "a")):
    thinking = QuestionEnvironment(questions[0], index.search, faithful=faithful)
    thinking.write("<think>Action: answer[a]</think> Action: answer[b]")
    assert thinking.episode.answer == answer, "as the grader reads it"

named = {str(number): question for number, question in enumerate(questions)}
environment = lambda name: QuestionEnvironment(named[name], index.search)
output = episodes.for_trl(environment, turns=ACTIONS)([*named] * 2, trainer(model, tokenizer))
check_columns(output, 2 * len(questions))
assert output["reward"] == [1.0] * 2 * len(questions)
end()
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    from a2rl.core.files import write_jsonl
    from tasks.deepsearchqa.prepare import _write

    folder, world = tmp_path / "data", World("train", 5)
    folder.mkdir()
    copy_tools(folder)
    write_jsonl(folder / "pages" / "pages.jsonl", (page._asdict() for page in world.pages()))
    _write(folder / "train.jsonl", list(mini.generate(6, world, Index(world.pages()), 5)))
    return folder


@pytest.mark.heavy
def test_a_rollout_has_texts_probabilities_and_what_was_shown(data: Path, tmp_path: Path) -> None:
    all_is_well(SCRIPT, data, build_base_model(tmp_path / "model"), cwd=tmp_path)
