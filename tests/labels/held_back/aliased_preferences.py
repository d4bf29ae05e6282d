import os
from datasets import Dataset
from trl import DPOConfig as C, DPOTrainer as T
import json

pairs = [json.loads(x) for x in open("data/pairs.jsonl")]
ds = Dataset.from_list([{"prompt": p["q"], "chosen": p["good"], "rejected": p["bad"]} for p in pairs])
t = T(model=os.environ["MODEL_PATH"], args=C(output_dir="output/p", beta=0.1, max_steps=200), train_dataset=ds)
t.train()
t.save_model("output/p/final")
