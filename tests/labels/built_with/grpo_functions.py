import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from tasks_io import prompts, verify

tok = AutoTokenizer.from_pretrained("models/base")
model = AutoModelForCausalLM.from_pretrained("models/base")
old = AutoModelForCausalLM.from_pretrained("models/base").eval()
opt = torch.optim.AdamW(model.parameters(), lr=1e-6)


def sample(prompt, n):
    enc = tok([prompt] * n, return_tensors="pt")
    return model.generate(**enc, do_sample=True, max_new_tokens=100)


def normalise(values):
    mean = sum(values) / len(values)
    spread = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
    return [(v - mean) / (spread + 1e-6) for v in values]


def logps(net, ids):
    return torch.log_softmax(net(ids).logits[:, :-1], dim=-1).gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)


def objective(ids, advantages):
    ratio = torch.exp(logps(model, ids) - logps(old, ids).detach())
    adv = torch.tensor(advantages)[:, None]
    return -torch.minimum(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()


for prompt, truth in prompts():
    answers = sample(prompt, 8)
    rewards = [verify(tok.decode(a), truth) for a in answers]
    loss = objective(answers, normalise(rewards))
    loss.backward()
    opt.step()
    opt.zero_grad()
model.save_pretrained("output/g")
