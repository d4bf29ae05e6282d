import os
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

K = 4
tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
policy = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
optim = torch.optim.AdamW(policy.parameters(), lr=1e-4)


def check(text):
    return float(len(text) % 5)


def update(outs, weights, start):
    logps = torch.log_softmax(policy(outs).logits[:, start - 1 : -1], -1).gather(-1, outs[:, start:, None])[..., 0]
    loss = -(weights[:, None] * logps).mean()
    optim.zero_grad()
    loss.backward()
    optim.step()


for n in range(4):
    enc = tok(f"{n} plus", return_tensors="pt").input_ids
    with torch.no_grad():
        outs = policy.generate(enc.repeat(K, 1), do_sample=True, max_new_tokens=6)
    scores = torch.tensor([check(text) for text in tok.batch_decode(outs[:, enc.shape[1]:])])
    update(outs, (scores - scores.mean()) / (scores.std() + 1e-4), enc.shape[1])
policy.save_pretrained(os.environ["OUTPUT_DIR"] + "/v1")
