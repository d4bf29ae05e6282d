"""Plays episodes with a real engine of vLLM next to the model, on a CPU or GPU: `make setup-vllm` installs it."""

import os
import subprocess
from pathlib import Path

import pytest

from a2rl.core.settings import Settings
from a2rl.handout import hand_out

MODEL = Path(os.environ.get("A2RL_TEST_MODEL", Settings.load().root / "models" / "tiny"))
VLLM_PYTHON = Settings.load().vllm_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM_PYTHON.is_file(), reason="vLLM is not installed: run `make setup-vllm`"),
]

SCRIPT = """
import os, sys
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_LOGGING_LEVEL="ERROR")
folder, path = sys.argv[1:]
sys.path.insert(0, folder)
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM
from episodes import LINES, Until, play

on_gpu = torch.cuda.is_available()
options = dict(enforce_eager=True, enable_chunked_prefill=False)
if on_gpu:
    options = dict(enable_sleep_mode=True, gpu_memory_utilization=0.01)
llm = LLM(path, dtype="float32", kv_cache_memory_bytes=1 << 28, logprobs_mode="processed_logprobs", **options)
if on_gpu:
    llm.sleep(level=2)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to("cuda" if on_gpu else "cpu")
tokenizer = AutoTokenizer.from_pretrained(path)

class Room:
    done, reward, invalid = False, 0.0, 0
    def __init__(self, number):
        self.prompt = f"You are in room {number}. There are {number * 3} boxes.\\n> "
    def write(self, turn):
        self.reward += len(turn)
        return f"You said {len(turn)}.\\n> "

def played(player, turns=LINES, **settings):
    rooms = [Room(number) for number in range(16)]
    return play(model, tokenizer, rooms, max_steps=5, max_new_tokens=12, turns=turns, player=player, **settings)

def differing(turns):
    return sum(one != other for one, other in zip(played(llm, turns), played(None, turns)))

for turns in (LINES, Until("e"), Until()):
    assert differing(turns) <= (1 if on_gpu else 0), "it plays like the model itself"  # a tie may part them on a GPU
before = played(None)
with torch.no_grad():
    for weights in model.parameters():
        weights.add_(0.1 * weights.std() * torch.randn_like(weights))
assert sum(one != other for one, other in zip(before, played(None))) > 8
assert differing(LINES) <= (1 if on_gpu else 0), "it takes over the weights of a step of training"
sampled, again = (played(llm, temperature=1.0, seed=3) for _ in range(2))
assert sampled == again
for episode in sampled:
    everything = torch.tensor([episode.prompt + episode.tokens], device=model.device)
    logits = model(everything).logits[0, len(episode.prompt) - 1 : -1].float().cpu()
    own = logits.log_softmax(-1).gather(-1, torch.tensor(episode.tokens)[:, None]).squeeze(-1)
    written = torch.tensor(episode.written, dtype=torch.bool)
    assert torch.allclose(own[written], torch.tensor(episode.logprobs)[written], atol=1e-2 if on_gpu else 1e-4)
print("all is well")
"""


def test_an_engine_of_vllm_plays_like_the_model_in_training(tmp_path: Path) -> None:
    hand_out(tmp_path)
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [str(VLLM_PYTHON), "-c", SCRIPT, str(tmp_path), str(MODEL)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environ, timeout=500)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.strip().endswith("all is well")
