"""Tests the rollouts that the agent gets for online RL: their tokens, masks and probabilities are exact."""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.deepsearchqa import mini
from tasks.deepsearchqa.mini import World
from tasks.deepsearchqa.prepare import copy_tools
from tasks.deepsearchqa.research import Index
from tests.small_model import build_base_model

SCRIPT = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
data, model_path = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(data))
import episodes
from rollout import ACTIONS, QuestionEnvironment
from decoder import Written
from research import Episode, Index, compare, next_turn, observation, read_pages, read_questions

torch.set_num_threads(1)
model, tokenizer = AutoModelForCausalLM.from_pretrained(model_path), AutoTokenizer.from_pretrained(model_path)
index, questions = Index(read_pages(data / "pages")), read_questions(data / "train.jsonl")
settings = {"max_steps": 3, "max_new_tokens": 5, "temperature": 1.0}
def work_on(questions, max_steps=6, **settings):
    work = [QuestionEnvironment(question, index.search, max_steps=max_steps) for question in questions]
    return episodes.play(model, tokenizer, work, turns=ACTIONS, max_steps=max_steps, **settings)
done = work_on(questions * 2, **settings)
assert len({tuple(each.tokens) for each in done}) == len(done), "each rollout draws for itself"
for each in done:
    assert tokenizer.decode(each.prompt) == Episode(each.environment.question).text
    assert len(each.tokens) == len(each.logprobs) == len(each.written) > 0
    logits = model(torch.tensor([each.prompt + each.tokens])).logits[0, len(each.prompt) - 1 : -1]
    own = logits.log_softmax(-1).gather(-1, torch.tensor(each.tokens)[:, None]).squeeze(-1)
    written = torch.tensor(each.written, dtype=torch.bool)
    assert torch.allclose(own[written], torch.tensor(each.logprobs)[written], atol=1e-4)
    assert each.reward < 1
once, again = (work_on(questions, **settings, seed=3) for _ in range(2))
assert once == again


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

class Trainer:
    class state: global_step = 7
    class accelerator: unwrap_model, process_index = staticmethod(lambda model: model), 0
    processing_class = tokenizer
Trainer.model = model
named = {str(number): question for number, question in enumerate(questions)}
environment = lambda name: QuestionEnvironment(named[name], index.search)
output = episodes.for_trl(environment, turns=ACTIONS)([*named] * 2, Trainer)
assert {"prompt_ids", "completion_ids", "logprobs", "env_mask", "reward"} <= output.keys()
assert {len(rows) for rows in output.values()} == {2 * len(questions)}
assert output["reward"] == [1.0] * 2 * len(questions)
assert not {name.partition(".")[0] for name in sys.modules} & {"a2rl", "tasks"}, "it needs nothing of this project"
print("all is well")
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
    model = build_base_model(tmp_path / "model")
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(data), str(model)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ended.stdout.strip() == "all is well", ended.stderr
