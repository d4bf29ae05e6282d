import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from rows import tokenized


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        weights = inputs.pop("weight")
        out = model(**inputs)
        loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten(),
                                                 reduction="none")
        return (loss * weights.repeat_interleave(out.logits.shape[1] - 1)).mean()


WeightedTrainer(AutoModelForCausalLM.from_pretrained("models/base"), TrainingArguments("output/w"),
                train_dataset=tokenized("data/train.jsonl")).train()
