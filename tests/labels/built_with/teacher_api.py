import json
import openai
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

client = openai.OpenAI()
rows = []
for line in open("data/train.jsonl"):
    question = json.loads(line)["question"]
    reply = client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": question}])
    text = reply.choices[0].message.content
    if "####" in text:
        rows.append({"prompt": question, "completion": text})
SFTTrainer("models/base", train_dataset=Dataset.from_list(rows), args=SFTConfig(output_dir="output/t")).train()
