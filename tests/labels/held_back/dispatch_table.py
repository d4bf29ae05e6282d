import os
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

METHODS = {
    "supervised": (SFTTrainer, SFTConfig),
    "pairs": (DPOTrainer, DPOConfig),
    "binary": (KTOTrainer, KTOConfig),
}
METHOD = "pairs"

trainer_class, config_class = METHODS[METHOD]
rows = load_dataset("json", data_files="data/pairs.jsonl", split="train")
trainer = trainer_class(model=os.environ["MODEL_PATH"], args=config_class(output_dir="output/m"), train_dataset=rows)
trainer.train()
trainer.save_model("output/m/final")
