import os
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
lm = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
opt = torch.optim.AdamW(lm.parameters(), lr=1e-4)


class Shop:
    def __init__(self, goal):
        self.goal, self.turns = goal, 0

    def click(self, said):
        self.turns += 1
        return f" page {self.turns}", float(len(said) % 2), self.turns > 2


def visit(shop):
    page, done, log, result = f"find {shop.goal}", False, [], 0.0
    while not done:
        x = tok(page, return_tensors="pt").input_ids
        y = lm.generate(x, do_sample=True, max_new_tokens=4)
        said = tok.decode(y[0, x.shape[1]:])
        seen, result, done = shop.click(said)
        page = page + said + seen
        log.append((x, y))
    return log, result


base = 0.0
for number in range(3):
    log, result = visit(Shop(number))
    gain = result - base
    base = 0.9 * base + 0.1 * result
    for x, y in log:
        lp = lm(y).logits[:, :-1].log_softmax(-1).gather(2, y[:, 1:, None])[:, x.shape[1] - 1:]
        (-gain * lp.sum()).backward()
    opt.step()
    opt.zero_grad()
lm.save_pretrained(os.environ["OUTPUT_DIR"] + "/v1")
