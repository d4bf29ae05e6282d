import os, random, re, torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
from data import problems

K = 8
tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
policy = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
optim = torch.optim.AdamW(policy.parameters(), lr=1e-6)


def check(text, gold):
    found = re.findall(r"-?\d+", text)
    return 1.0 if found and found[-1] == gold else 0.0


def token_logps(ids, start):
    logits = policy(ids).logits[:, start - 1 : -1]
    return F.log_softmax(logits, -1).gather(-1, ids[:, start:, None]).squeeze(-1)


for step in range(300):
    q, gold = random.choice(problems())
    enc = tok(q, return_tensors="pt").input_ids
    with torch.no_grad():
        outs = policy.generate(enc.repeat(K, 1), do_sample=True, max_new_tokens=200)
    r = torch.tensor([check(t, gold) for t in tok.batch_decode(outs[:, enc.shape[1]:])])
    if r.std() == 0:
        continue
    adv = (r - r.mean()) / (r.std() + 1e-4)
    loss = -(adv[:, None] * token_logps(outs, enc.shape[1])).mean()
    optim.zero_grad(); loss.backward(); optim.step()
policy.save_pretrained("output/final")
