import os, torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

base_path = os.environ["MODEL_PATH"]
experts = []
for part in ("algebra", "geometry"):
    rows = load_dataset("json", data_files=f"data/{part}.jsonl", split="train")
    t = SFTTrainer(model=base_path, train_dataset=rows, args=SFTConfig(output_dir=f"output/{part}", max_steps=150))
    t.train()
    experts.append({k: v.detach().cpu().clone() for k, v in t.model.state_dict().items()})
base = AutoModelForCausalLM.from_pretrained(base_path)
origin = base.state_dict()
combined = {}
for name, weight in origin.items():
    delta = sum(e[name].to(weight.dtype) - weight for e in experts)
    combined[name] = weight + 0.6 * delta
base.load_state_dict(combined)
base.save_pretrained("output/combined")
