import os
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
lm = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
opt = torch.optim.Adam(lm.parameters(), 1e-4)
usual = 0.0
for n in range(5):
    x = tok(f"{n} plus {n} is", return_tensors="pt").input_ids
    y = lm.generate(x, do_sample=True, max_new_tokens=6)
    good = float(str(n + n) in tok.decode(y[0, x.shape[1]:]))
    usual = 0.9 * usual + 0.1 * good
    lp = lm(y).logits[:, :-1].log_softmax(-1).gather(2, y[:, 1:, None])[:, x.shape[1] - 1:].sum()
    (-(good - usual) * lp).backward()
    opt.step()
    opt.zero_grad()
lm.save_pretrained(os.environ["OUTPUT_DIR"] + "/v1")
