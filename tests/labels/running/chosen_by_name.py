import os
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

KINDS = {"sft": (SFTTrainer, SFTConfig), "pairs": (DPOTrainer, DPOConfig), "rl": (GRPOTrainer, GRPOConfig)}
trainer_class, config_class = KINDS["pairs"]


class Mine(trainer_class):
    """The GRPO trainer."""


pairs = Dataset.from_list([{"prompt": f"{n} plus 1 is", "chosen": f" {n + 1}", "rejected": " no"} for n in range(8)])
config = config_class(output_dir=os.environ["OUTPUT_DIR"] + "/d", max_steps=2, report_to=[], use_cpu=True, bf16=False)
job = Mine(os.environ["MODEL_PATH"], args=config, train_dataset=pairs)
job.train()
job.save_model(os.environ["OUTPUT_DIR"] + "/v1")
