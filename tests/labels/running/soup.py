import os
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE, OUT = os.environ["MODEL_PATH"], os.environ["OUTPUT_DIR"]
tok = AutoTokenizer.from_pretrained(BASE)


def train(seed, out):
    model = AutoModelForCausalLM.from_pretrained(BASE)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for n in range(4):
        ids = tok(f"{n + seed} plus {n} is {n + n + seed}", return_tensors="pt").input_ids
        model(ids, labels=ids).loss.backward()
        opt.step()
        opt.zero_grad()
    model.save_pretrained(out)


train(1, f"{OUT}/one")
train(2, f"{OUT}/two")
first, second = AutoModelForCausalLM.from_pretrained(f"{OUT}/one"), AutoModelForCausalLM.from_pretrained(f"{OUT}/two")
other = second.state_dict()
first.load_state_dict({name: 0.5 * weight + 0.5 * other[name] for name, weight in first.state_dict().items()})
first.save_pretrained(f"{OUT}/v1")
