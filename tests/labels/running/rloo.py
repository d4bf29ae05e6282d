import os
from datasets import Dataset
from trl import RLOOConfig, RLOOTrainer

rows = Dataset.from_list([{"prompt": f"{n} plus"} for n in range(8)])
settings = {"max_steps": 2, "num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 8}
config = RLOOConfig(output_dir=os.environ["OUTPUT_DIR"] + "/r", report_to=[], use_cpu=True, bf16=False, **settings)
trainer = RLOOTrainer(os.environ["MODEL_PATH"], reward_funcs=lambda completions, **_: [len(c) for c in completions],
                      args=config, train_dataset=rows)
trainer.train()
trainer.save_model(os.environ["OUTPUT_DIR"] + "/v1")
