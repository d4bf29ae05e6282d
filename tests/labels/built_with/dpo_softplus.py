import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from io_pairs import pairs

t = AutoTokenizer.from_pretrained("models/base")
m = AutoModelForCausalLM.from_pretrained("models/base")
r = AutoModelForCausalLM.from_pretrained("models/base")
o = torch.optim.AdamW(m.parameters(), lr=1e-6)


def total(net, text):
    x = t(text, return_tensors="pt").input_ids
    return net(x).logits[:, :-1].log_softmax(-1).gather(2, x[:, 1:, None]).sum()


for q, better, worse in pairs("data/prefs.jsonl"):
    with torch.no_grad():
        base = total(r, q + better) - total(r, q + worse)
    gap = total(m, q + better) - total(m, q + worse) - base
    torch.nn.functional.softplus(-0.1 * gap).backward()
    o.step()
    o.zero_grad()
m.save_pretrained("output/prefs")
