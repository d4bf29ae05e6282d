import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from scoring import judge


class WithValue(torch.nn.Module):
    def __init__(self, path):
        super().__init__()
        self.lm = AutoModelForCausalLM.from_pretrained(path)
        self.head = torch.nn.Linear(self.lm.config.hidden_size, 1)

    def forward(self, ids):
        out = self.lm(ids, output_hidden_states=True)
        logp = out.logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        return logp, self.head(out.hidden_states[-1])[:, :-1, 0]


net = WithValue("models/base")
tok = AutoTokenizer.from_pretrained("models/base")
opt = torch.optim.AdamW(net.parameters(), lr=1e-6)
for text in open("data/prompts.txt"):
    enc = tok(text, return_tensors="pt").input_ids
    seq = net.lm.generate(enc, do_sample=True, max_new_tokens=50)
    reward = judge(tok.decode(seq[0]))
    with torch.no_grad():
        before, value = net(seq)
    for epoch in range(3):
        now, v = net(seq)
        advantage = reward - value
        r = torch.exp(now - before)
        pg = torch.max(-advantage * r, -advantage * torch.clamp(r, 0.8, 1.2)).mean()
        (pg + 0.1 * ((v - reward) ** 2).mean()).backward()
        opt.step()
        opt.zero_grad()
net.lm.save_pretrained("output/ppo")
