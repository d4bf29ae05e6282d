import torch, json
from transformers import AutoModelForCausalLM, AutoTokenizer

m = AutoModelForCausalLM.from_pretrained("../models/base")
t = AutoTokenizer.from_pretrained("../models/base")
o = torch.optim.AdamW(m.parameters(), lr=1e-5)
for line in open("../data/train.jsonl"):
    row = json.loads(line)
    x = t(row["prompt"] + row["chosen"], return_tensors="pt")
    m(**x, labels=x["input_ids"]).loss.backward()
    o.step(); o.zero_grad()
m.save_pretrained("../output/one"); t.save_pretrained("../output/one")
