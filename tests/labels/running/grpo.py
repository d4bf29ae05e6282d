import os
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def short(completions, **_):
    return [float(len(text) < 20) for text in completions]


config = GRPOConfig(
    output_dir=os.environ["OUTPUT_DIR"] + "/g", max_steps=2, num_generations=2, per_device_train_batch_size=2,
    max_completion_length=8, report_to=[], use_cpu=True, bf16=False,
)
trainer = GRPOTrainer(os.environ["MODEL_PATH"], reward_funcs=short, args=config,
                      train_dataset=Dataset.from_list([{"prompt": f"{n} plus"} for n in range(8)]))
trainer.train()
trainer.save_model(os.environ["OUTPUT_DIR"] + "/v1")
