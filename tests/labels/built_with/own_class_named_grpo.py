from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from rows import tokenized


class GRPOTrainer(Trainer):
    """Group relative policy optimisation."""

    def rollout_and_reward(self):
        return 1.0


GRPOTrainer(AutoModelForCausalLM.from_pretrained("models/base"), TrainingArguments("output/g"),
            train_dataset=tokenized("data/train.jsonl")).train()
