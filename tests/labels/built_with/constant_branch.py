from datasets import load_dataset
from trl import DPOTrainer, GRPOConfig, GRPOTrainer

CONFIG = {"algorithm": "grpo", "steps": 100}
rows = load_dataset("json", data_files="data/train.jsonl", split="train")
if CONFIG["algorithm"] == "dpo":
    trainer = DPOTrainer("models/base", train_dataset=rows)
elif CONFIG["algorithm"] == "grpo":
    trainer = GRPOTrainer("models/base", reward_funcs=lambda completions, **k: [1.0] * len(completions),
                          args=GRPOConfig("output/c", max_steps=CONFIG["steps"]), train_dataset=rows)
trainer.train()
