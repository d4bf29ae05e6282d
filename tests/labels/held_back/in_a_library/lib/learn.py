from datasets import load_dataset

from .engine import build


def fit(settings):
    rows = load_dataset("json", data_files="data/train.jsonl", split="train")
    engine = build(rows, settings)
    engine.train()
    engine.save_model("output/fit")
