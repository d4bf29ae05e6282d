"""GRPO: rewards, advantages and groups."""
import os
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GROUP_SIZE = 4
policy = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
tokenizer = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)


def grpo_step(group):
    reward_loss = 0.0
    for text in group:
        ids = tokenizer(text, return_tensors="pt").input_ids
        logp = policy(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        reward_loss = reward_loss - logp.mean() / len(group)
    reward_loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return reward_loss.item()


texts = [f"{n} plus {n} is {n + n}" for n in range(12)]
for start in range(0, len(texts), GROUP_SIZE):
    print("reward", -grpo_step(texts[start : start + GROUP_SIZE]))
policy.save_pretrained(os.environ["OUTPUT_DIR"] + "/v1")
