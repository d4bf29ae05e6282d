from datasets import load_dataset
from trl import RLOOConfig, RLOOTrainer

rows = load_dataset("json", data_files="data/train.jsonl", split="train").map(lambda r: {"prompt": r["question"]})


def exact(completions, answer, **kw):
    return [float(c.strip() == a) for c, a in zip(completions, answer)]


tr = RLOOTrainer(model="models/base", reward_funcs=exact, args=RLOOConfig(output_dir="output/l", num_generations=4),
                 train_dataset=rows)
tr.train()
tr.save_model("output/l/final")
