import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("models/base")
policy = AutoModelForCausalLM.from_pretrained("models/base")
opt = torch.optim.AdamW(policy.parameters(), lr=1e-5)
for line in open("data/gold.txt"):
    ids = tok(line, return_tensors="pt").input_ids
    logp = policy(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    policy_loss = -logp.mean()
    policy_loss.backward()
    opt.step()
    opt.zero_grad()
policy.save_pretrained("output/nll")
