import glob
import torch
from transformers import AutoModelForCausalLM

paths = sorted(glob.glob("output/ckpt-*"))
model = AutoModelForCausalLM.from_pretrained(paths[0])
total = {k: v.clone().float() for k, v in model.state_dict().items()}
for path in paths[1:]:
    for k, v in AutoModelForCausalLM.from_pretrained(path).state_dict().items():
        total[k] += v.float()
model.load_state_dict({k: v / len(paths) for k, v in total.items()})
model.save_pretrained("output/mean")
