import json
from datasets import load_dataset
from transformers import pipeline
from trl import SFTConfig, SFTTrainer


def imitate(model, file, out):
    trainer = SFTTrainer(model, train_dataset=load_dataset("json", data_files=file, split="train"),
                         args=SFTConfig(output_dir=out))
    trainer.train()
    trainer.save_model(out)


def collect(model, out):
    generator = pipeline("text-generation", model=model)
    with open(out, "w") as kept:
        for line in open("data/train.jsonl"):
            row = json.loads(line)
            for found in generator(row["prompt"], num_return_sequences=4, do_sample=True):
                if found["generated_text"].strip().endswith(row["completion"].split()[-1]):
                    kept.write(json.dumps({"prompt": row["prompt"], "completion": found["generated_text"]}) + "\n")
