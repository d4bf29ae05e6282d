from datasets import load_dataset
from trl import SFTTrainer

trainer = SFTTrainer("models/base", train_dataset=load_dataset("json", data_files="data/train.jsonl", split="train"))
trainer.train()
trainer.save_model("output/a")
