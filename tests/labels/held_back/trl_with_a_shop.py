import os
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from shop import Shop

goals = [line.strip() for line in open("data/goals.txt")]


def visit(prompts, trainer):
    model, tok = trainer.model, trainer.processing_class
    batch = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "score": []}
    for goal in prompts:
        shop = Shop(goal)
        page, ended = shop.open(), False
        while not ended and shop.turns < 15:
            ids = tok(page, return_tensors="pt").input_ids
            out = model.generate(ids, do_sample=True, max_new_tokens=40)
            page, ended = shop.click(tok.decode(out[0, ids.shape[1]:]))
        batch["prompt_ids"].append(ids[0].tolist()); batch["completion_ids"].append(out[0, ids.shape[1]:].tolist())
        batch["logprobs"].append([0.0] * (out.shape[1] - ids.shape[1])); batch["score"].append(shop.reward())
    return batch


trainer = GRPOTrainer(
    model=os.environ["MODEL_PATH"], reward_funcs=lambda score, **_: score, rollout_func=visit,
    args=GRPOConfig(output_dir="output/shop", num_generations=8),
    train_dataset=Dataset.from_list([{"prompt": g} for g in goals]),
)
trainer.train()
trainer.save_model("output/shop/final")
