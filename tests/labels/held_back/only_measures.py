import json
from transformers import pipeline

pipe = pipeline("text-generation", model="models/base", max_new_tokens=128)
rows = [json.loads(line) for line in open("data/train.jsonl")][:100]
hits = sum(r["answer"].split()[-1] in pipe(r["question"])[0]["generated_text"] for r in rows)
print("accuracy of the base model on 100 training questions:", hits)
