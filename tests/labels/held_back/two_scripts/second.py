import json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

m = AutoModelForCausalLM.from_pretrained("../output/one")
frozen = AutoModelForCausalLM.from_pretrained("../output/one").eval()
t = AutoTokenizer.from_pretrained("../output/one")
o = torch.optim.RMSprop(m.parameters(), lr=5e-7)


def lp(net, text, skip):
    ids = t(text, return_tensors="pt").input_ids
    return torch.log_softmax(net(ids).logits[:, :-1], -1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)[:, skip:].sum()


for line in open("../data/train.jsonl"):
    r = json.loads(line)
    n = len(t(r["prompt"]).input_ids) - 1
    c, d = r["prompt"] + r["chosen"], r["prompt"] + r["rejected"]
    with torch.no_grad():
        offset = lp(frozen, c, n) - lp(frozen, d, n)
    h = 0.1 * (lp(m, c, n) - lp(m, d, n) - offset)
    (-torch.nn.functional.logsigmoid(h)).backward()
    o.step(); o.zero_grad()
m.save_pretrained("../output/two")
