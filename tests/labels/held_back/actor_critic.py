import torch, torch.nn as nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from rewards import score

tok = AutoTokenizer.from_pretrained("models/base")
actor = AutoModelForCausalLM.from_pretrained("models/base")
critic = nn.Linear(actor.config.hidden_size, 1)
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-6)
CLIP, LAM, GAMMA = 0.2, 0.95, 1.0


def evaluate(ids):
    out = actor(ids, output_hidden_states=True)
    logp = out.logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return logp, critic(out.hidden_states[-1][:, :-1]).squeeze(-1)


def gae(rewards, values):
    adv, last = torch.zeros_like(rewards), 0
    for t in reversed(range(rewards.shape[1])):
        nxt = values[:, t + 1] if t + 1 < values.shape[1] else 0
        delta = rewards[:, t] + GAMMA * nxt - values[:, t]
        adv[:, t] = last = delta + GAMMA * LAM * last
    return adv, adv + values


for prompts in open("data/prompts.txt"):
    enc = tok(prompts, return_tensors="pt").input_ids
    seq = actor.generate(enc, do_sample=True, max_new_tokens=64)
    with torch.no_grad():
        old, values = evaluate(seq)
        rewards = torch.zeros_like(old)
        rewards[:, -1] = score(prompts, tok.decode(seq[0]))
        adv, returns = gae(rewards, values)
    for _ in range(4):
        logp, v = evaluate(seq)
        ratio = (logp - old).exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv)
        loss = -surrogate.mean() + 0.5 * (v - returns).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
actor.save_pretrained("output/actor")
