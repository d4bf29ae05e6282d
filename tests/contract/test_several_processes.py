"""Tests that training with several processes works in the sandbox: torchrun, gloo, and the socket that NCCL opens. The
scripted agent, which starts a process for each of several GPUs, trains with two of them as it does with one."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from a2rl.core.settings import Settings
from a2rl.linux import landlock
from a2rl.sandbox.selection import select_sandbox, try_in_sandbox
from tests.small_model import build_base_model

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")]
TIMEOUT_S = 300
TRAINS = """
import os, socket
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as as_nccl_does:
    as_nccl_does.bind(f"\\0tmp/nccl-socket-{rank}-{os.getppid():x}")
    model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.5, 1.5]], model.module.weight.grad
torch.distributed.destroy_process_group()
"""
SCRIPTED = """
import os
from pathlib import Path
import torch
from datasets import Dataset
from training import IGNORED_LABEL, Sft, agreed, gathered, load, own_share, processes
from trl import SFTConfig

model, tokenizer, *_ = load(Path(os.environ["MODEL_PATH"]))
config = SFTConfig("trainer", report_to=[], use_cpu=True, bf16=False, dataset_kwargs={"skip_prepare_dataset": True})
data = Dataset.from_list([{"input_ids": [5], "labels": [5]}])
trainer = Sft(model=model, processing_class=tokenizer, args=config, train_dataset=data)
trainer.current_gradient_accumulation_steps, trainer.tokens_at_once = 1, 1  # each text goes through the model alone
wrapped = trainer.accelerator.prepare_model(model)
assert wrapped is not model

def gradient(loss):
    model.zero_grad()
    loss().backward()
    return torch.cat([each.grad.flatten() for each in model.parameters()])

def of_one_process(texts):
    losses = []
    for text in texts:
        chances = model(input_ids=torch.tensor([text])).logits[0, :-1].log_softmax(-1)
        losses.append(-chances.gather(1, torch.tensor(text[1:])[:, None]))
    return torch.cat(losses).sum() / sum(map(len, texts))

def of_a_share(texts, is_learned):
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    labels = tokens.where((tokens > 0) & is_learned, IGNORED_LABEL)
    batch = {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": labels}
    return trainer.compute_loss(wrapped, batch, num_items_in_batch=None)

assert processes() == 2
[rank] = own_share([0, 1])
assert (agreed(rank), gathered([rank]), own_share("abc")) == (0, [0, 1], ["ac", "b"][rank])
texts = [[5, 6, 7, 8, 9], [10, 11, 12], [13, 14, 15, 16], [17, 18, 19, 20, 21]]
shares = texts[:3], texts[3:]
alone, together = gradient(lambda: of_one_process(texts)), gradient(lambda: of_a_share(shares[rank], True))
assert torch.allclose(alone, together, atol=1e-6), (alone - together).abs().max()
# The first process has nothing to learn.
alone, together = gradient(lambda: of_one_process(shares[1])), gradient(lambda: of_a_share(shares[rank], rank == 1))
assert torch.allclose(alone, together, atol=1e-6), (alone - together).abs().max()
"""


def test_two_processes_train_together(tmp_path: Path, settings: Settings) -> None:
    program = tmp_path / "trains.py"
    program.write_text(TRAINS)
    isolation = select_sandbox("landlock", settings)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    ended = try_in_sandbox(command, isolation, settings, read=(program,), timeout_s=TIMEOUT_S)
    assert ended.ok, ended.output


def test_the_scripted_agents_processes_train_as_one(tmp_path: Path, settings: Settings, repository: Path) -> None:
    agent = shutil.copytree(repository / "agents" / "scripted", tmp_path / "agent")
    (agent / "agent.py").write_text(SCRIPTED)
    model = build_base_model(tmp_path / "model")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "MODEL_PATH": str(model), "CUDA_VISIBLE_DEVICES": "0,1"}
    command = ["bash", "-c", f"mkdir code && bash {agent}/start.sh"]
    isolation = select_sandbox("landlock", settings)
    ended = try_in_sandbox(command, isolation, settings, env, read=(agent, model), timeout_s=TIMEOUT_S)
    assert ended.ok, ended.output
