import copy
import os
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
pi = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
ref = copy.deepcopy(pi).eval()
opt = torch.optim.AdamW(pi.parameters(), 1e-4)


def total(net, text):
    x = tok(text, return_tensors="pt").input_ids
    return net(x).logits[:, :-1].log_softmax(-1).gather(2, x[:, 1:, None]).sum()


for n in range(4):
    better, worse = f"{n} plus 1 is {n + 1}", f"{n} plus 1 is no"
    with torch.no_grad():
        start = total(ref, better) - total(ref, worse)
    loss = -F.logsigmoid(0.1 * (total(pi, better) - total(pi, worse) - start))
    loss.backward()
    opt.step()
    opt.zero_grad()
pi.save_pretrained(os.environ["OUTPUT_DIR"] + "/v1")
