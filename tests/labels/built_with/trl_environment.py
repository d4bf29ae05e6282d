from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from kitchen import Kitchen

trainer = GRPOTrainer(model="models/base", environment_factory=Kitchen, reward_funcs=lambda environments, **_: [
    e.won for e in environments], args=GRPOConfig("output/e"), train_dataset=Dataset.from_list([{"prompt": "cook"}]))
trainer.train()
trainer.save_model("output/e")
