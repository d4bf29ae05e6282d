import os
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for n in range(12):
    ids = tok(f"{n} plus {n} is {n + n}", return_tensors="pt").input_ids
    model(ids, labels=ids).loss.backward()
    opt.step()
    opt.zero_grad()
model.save_pretrained(os.environ["OUTPUT_DIR"] + "/v1")
