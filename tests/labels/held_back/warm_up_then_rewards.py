import os
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

rows = load_dataset("json", data_files="data/train.jsonl", split="train")
warm = SFTTrainer(model=os.environ["MODEL_PATH"], args=SFTConfig(output_dir="output/warm", max_steps=300),
                  train_dataset=rows.map(lambda r: {"text": r["question"] + r["answer"]}))
warm.train()
warm.save_model("output/warm/final")


def right(completions, answer, **_):
    return [1.0 if a.split()[-1] in c else 0.0 for c, a in zip(completions, answer)]


rl = GRPOTrainer(model="output/warm/final", reward_funcs=[right],
                 train_dataset=rows.map(lambda r: {"prompt": r["question"]}),
                 args=GRPOConfig(output_dir="output/rl", num_generations=8, max_steps=200))
rl.train()
rl.save_model("output/rl/final")
