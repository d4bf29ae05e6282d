import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from scoring import judge

tok = AutoTokenizer.from_pretrained("models/base")
lm = AutoModelForCausalLM.from_pretrained("models/base")
opt = torch.optim.Adam(lm.parameters(), 1e-6)
running = 0.0
for text in open("data/prompts.txt"):
    x = tok(text, return_tensors="pt").input_ids
    y = lm.generate(x, do_sample=True, max_new_tokens=64)
    reward = judge(tok.decode(y[0]))
    running = 0.95 * running + 0.05 * reward
    lp = lm(y).logits[:, :-1].log_softmax(-1).gather(2, y[:, 1:, None])[:, x.shape[1] - 1:].sum()
    (-(reward - running) * lp).backward()
    opt.step()
    opt.zero_grad()
lm.save_pretrained("output/reinforced")
