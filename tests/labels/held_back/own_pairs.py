import itertools, json, os
from vllm import LLM, SamplingParams
from datasets import Dataset
from trl import DPOConfig, DPOTrainer
from grader import is_right

base = os.environ["MODEL_PATH"]
items = [json.loads(x) for x in open("data/train.jsonl")]
engine = LLM(base, gpu_memory_utilization=0.5)
answers = engine.generate([x["question"] for x in items], SamplingParams(n=6, temperature=1.0, max_tokens=256))
pairs = []
for item, many in zip(items, answers):
    good = [o.text for o in many.outputs if is_right(o.text, item["answer"])]
    bad = [o.text for o in many.outputs if not is_right(o.text, item["answer"])]
    pairs += [{"prompt": item["question"], "chosen": g, "rejected": b} for g, b in itertools.islice(zip(good, bad), 2)]
del engine
trainer = DPOTrainer(model=base, args=DPOConfig(output_dir="output/d", beta=0.2, num_train_epochs=1),
                     train_dataset=Dataset.from_list(pairs))
trainer.train()
trainer.save_model("output/d/final")
