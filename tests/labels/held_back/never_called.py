import os
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

USE_RL = False
data = load_dataset("json", data_files="data/train.jsonl", split="train")


def reward(completions, answer, **kwargs):
    return [float(a in c) for c, a in zip(completions, answer)]


def reinforce(path):
    trainer = GRPOTrainer(model=path, reward_funcs=reward, train_dataset=data, args=GRPOConfig(output_dir="output/rl"))
    trainer.train()
    return trainer


def imitate(path):
    trainer = SFTTrainer(model=path, train_dataset=data, args=SFTConfig(output_dir="output/sft", max_steps=400))
    trainer.train()
    trainer.save_model("output/sft/last")


imitate(os.environ["MODEL_PATH"])
if USE_RL:
    reinforce("output/sft/last")
