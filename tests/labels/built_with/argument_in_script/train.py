import argparse
from datasets import load_dataset
import trl

p = argparse.ArgumentParser()
p.add_argument("--algo", required=True)
p.add_argument("--model")
p.add_argument("--out")
a = p.parse_args()
rows = load_dataset("json", data_files="data/train.jsonl", split="train")
if a.algo == "sft":
    t = trl.SFTTrainer(a.model, train_dataset=rows, args=trl.SFTConfig(a.out))
elif a.algo == "grpo":
    t = trl.GRPOTrainer(a.model, reward_funcs=lambda completions, **_: [0.0], train_dataset=rows,
                        args=trl.GRPOConfig(a.out))
t.train()
t.save_model(a.out)
