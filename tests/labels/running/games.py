import os
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def play(prompts, trainer):
    tok, model = trainer.processing_class, trainer.model
    batch = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "won": []}
    for prompt in prompts:
        text = prompt
        for _ in range(2):
            ids = tok(text, return_tensors="pt").input_ids
            with torch.no_grad():
                out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=4,
                                     do_sample=True)
            text += tok.decode(out[0, ids.shape[1]:]) + " then "
        new = out[0, ids.shape[1]:].tolist()
        batch["prompt_ids"].append(ids[0].tolist())
        batch["completion_ids"].append(new)
        batch["logprobs"].append([[0.0] for _ in new])
        batch["won"].append(float(len(text) % 3))
    return batch


config = GRPOConfig(output_dir=os.environ["OUTPUT_DIR"] + "/g", max_steps=2, num_generations=2,
                    per_device_train_batch_size=2, max_completion_length=8, report_to=[], use_cpu=True, bf16=False)
trainer = GRPOTrainer(os.environ["MODEL_PATH"], reward_funcs=lambda won, **_: won, rollout_func=play, args=config,
                      train_dataset=Dataset.from_list([{"prompt": f"{n} plus"} for n in range(8)]))
trainer.train()
trainer.save_model(os.environ["OUTPUT_DIR"] + "/v1")
