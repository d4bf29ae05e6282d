import os
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

OUT = os.environ["OUTPUT_DIR"]
COMMON = {"max_steps": 2, "report_to": [], "use_cpu": True, "bf16": False, "per_device_train_batch_size": 2}


def warm_up(start):
    rows = Dataset.from_list([{"text": f"{n} plus {n} is {n + n}"} for n in range(8)])
    trainer = SFTTrainer(start, args=SFTConfig(output_dir=f"{OUT}/s", **COMMON), train_dataset=rows)
    trainer.train()
    trainer.save_model(f"{OUT}/warm")
    return f"{OUT}/warm"


def improve(start):
    config = GRPOConfig(output_dir=f"{OUT}/g", num_generations=2, max_completion_length=8, **COMMON)
    rows = Dataset.from_list([{"prompt": f"{n} plus"} for n in range(8)])
    trainer = GRPOTrainer(start, reward_funcs=lambda completions, **_: [len(c) for c in completions], args=config,
                          train_dataset=rows)
    trainer.train()
    trainer.save_model(f"{OUT}/v1")


improve(warm_up(os.environ["MODEL_PATH"]))
