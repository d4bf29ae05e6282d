import json, os
import pandas as pd

rows = [json.loads(line) for line in open(os.environ["DATA_PATH"] + "/train.jsonl")]
frame = pd.DataFrame({"prompt": [[{"role": "user", "content": r["question"]}] for r in rows],
                      "reward_model": [{"ground_truth": r["answer"], "style": "rule"} for r in rows]})
frame.to_parquet(os.path.expanduser("~/data/train.parquet"))
