import trl
from datasets import load_dataset

config = trl.DPOConfig(output_dir="output/d")
rows = load_dataset("json", data_files="data/pairs.jsonl")["train"]
trainer = trl.DPOTrainer(model="models/base", args=config, train_dataset=rows)
trainer.train()
