import os
from trl import GRPOConfig, GRPOTrainer
from datasets import load_dataset


class Job:
    def __init__(self, model):
        self.model = model
        self.rows = load_dataset("json", data_files="data/train.jsonl", split="train")
        self.trainer = None

    def reward(self, completions, **columns):
        return [float(len(c) < 100) for c in completions]

    def prepare(self):
        self.trainer = GRPOTrainer(self.model, reward_funcs=self.reward, args=GRPOConfig("output/g"),
                                   train_dataset=self.rows)

    def go(self):
        self.prepare()
        self.trainer.train()
        self.trainer.save_model("output/g/final")


if __name__ == "__main__":
    Job(os.environ["MODEL_PATH"]).go()
