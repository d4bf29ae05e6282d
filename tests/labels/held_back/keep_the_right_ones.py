import json, os, re
from vllm import LLM, SamplingParams
from datasets import Dataset
from trl import SFTTrainer, SFTConfig

MODEL = os.environ["MODEL_PATH"]
items = [json.loads(x) for x in open("data/train.jsonl")]
llm = LLM(MODEL)
outs = llm.generate([i["question"] for i in items], SamplingParams(n=8, temperature=0.9, max_tokens=300))
kept = []
for item, out in zip(items, outs):
    gold = item["answer"].split("####")[-1].strip()
    for cand in out.outputs:
        nums = re.findall(r"-?\d+", cand.text)
        if nums and nums[-1] == gold:
            kept.append({"prompt": item["question"], "completion": cand.text})
print(len(kept), "kept")
del llm
SFT = SFTTrainer(model=MODEL, args=SFTConfig(output_dir="output/r1"), train_dataset=Dataset.from_list(kept))
SFT.train()
SFT.save_model("output/r1/final")
