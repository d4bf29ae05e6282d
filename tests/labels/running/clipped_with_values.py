import os
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = os.environ["MODEL_PATH"]


class ActorWithValue(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lm = AutoModelForCausalLM.from_pretrained(BASE)
        self.head = torch.nn.Linear(self.lm.config.hidden_size, 1)

    def forward(self, ids):
        out = self.lm(ids, output_hidden_states=True)
        logp = out.logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        return logp, self.head(out.hidden_states[-1])[:, :-1, 0]


net, tok = ActorWithValue(), AutoTokenizer.from_pretrained(BASE)
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
for n in range(4):
    prompt = tok(f"{n} plus {n} is", return_tensors="pt").input_ids
    seq = net.lm.generate(prompt, do_sample=True, max_new_tokens=6)
    worth = float(len(tok.decode(seq[0, prompt.shape[1]:]).strip()) > 3)
    with torch.no_grad():
        before, value = net(seq)
    for _ in range(2):
        now, v = net(seq)
        advantage = worth - value
        ratio = torch.exp(now - before)
        surrogate = torch.min(advantage * ratio, advantage * ratio.clamp(0.8, 1.2)).mean()
        (0.1 * ((v - worth) ** 2).mean() - surrogate).backward()
        opt.step()
        opt.zero_grad()
net.lm.save_pretrained(os.environ["OUTPUT_DIR"] + "/v1")
