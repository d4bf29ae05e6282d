import json, os, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"]).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
data = [json.loads(l) for l in open(os.environ["DATA_PATH"] + "/train.jsonl")]
for step, ex in enumerate(data):
    p = tok(ex["question"], return_tensors="pt").input_ids
    a = tok(ex["answer"] + tok.eos_token, return_tensors="pt").input_ids
    ids = torch.cat([p, a], dim=1).cuda()
    labels = ids.clone()
    labels[:, : p.shape[1]] = -100
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    if step % 8 == 7:
        opt.step(); opt.zero_grad()
model.save_pretrained("output/m1"); tok.save_pretrained("output/m1")
