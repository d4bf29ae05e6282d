import os
import trl
from datasets import Dataset

pairs = Dataset.from_list([{"prompt": f"{n} plus 1 is", "chosen": f" {n + 1}", "rejected": " no"} for n in range(8)])
options = trl.DPOConfig(output_dir=os.environ["OUTPUT_DIR"] + "/d", max_steps=2, report_to=[], use_cpu=True, bf16=False)
learner = trl.DPOTrainer(os.environ["MODEL_PATH"], args=options, train_dataset=pairs)
learner.train()
learner.model.save_pretrained(os.environ["OUTPUT_DIR"] + "/v1")
