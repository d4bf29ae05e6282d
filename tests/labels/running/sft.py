import os
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

rows = Dataset.from_list([{"prompt": f"{n} plus {n} is", "completion": f" {n + n}"} for n in range(8)])
config = SFTConfig(output_dir=os.environ["OUTPUT_DIR"] + "/trainer", max_steps=2, report_to=[], use_cpu=True, bf16=False)
trainer = SFTTrainer(os.environ["MODEL_PATH"], args=config, train_dataset=rows)
trainer.train()
trainer.save_model(os.environ["OUTPUT_DIR"] + "/v1")
