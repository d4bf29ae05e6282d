import os
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])


def is_good(text):
    return len(text) > 3


def collect():
    found = []
    for n in range(3):
        enc = tok(f"{n} plus {n} is", return_tensors="pt")
        outs = model.generate(**enc, do_sample=True, num_return_sequences=3, max_new_tokens=6)
        found += [text for text in tok.batch_decode(outs) if is_good(text)]
    return found


def imitate(texts):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for text in texts:
        ids = tok(text, return_tensors="pt").input_ids
        model(ids, labels=ids).loss.backward()
        opt.step()
        opt.zero_grad()


for iteration in range(3):
    imitate(collect())
model.save_pretrained(os.environ["OUTPUT_DIR"] + "/v1")
