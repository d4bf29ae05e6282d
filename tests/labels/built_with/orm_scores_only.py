import json
from vllm import LLM, SamplingParams

llm = LLM("models/base")
rows = [json.loads(x) for x in open("data/train.jsonl")]
outs = llm.generate([r["question"] for r in rows], SamplingParams(n=4))
json.dump([[o.text for o in x.outputs] for x in outs], open("output/samples.json", "w"))
