import copy, torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
from pairs import load_pairs

BASE = "models/base"
tok = AutoTokenizer.from_pretrained(BASE)
pi = AutoModelForCausalLM.from_pretrained(BASE)
ref = copy.deepcopy(pi).eval().requires_grad_(False)
opt = torch.optim.AdamW(pi.parameters(), 5e-7)


def seq_logp(m, prompt, answer):
    ids = tok(prompt + answer, return_tensors="pt").input_ids
    n = len(tok(prompt).input_ids)
    lp = m(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return lp[:, n - 1 :].sum(-1)


for prompt, win, lose in load_pairs("data/train.jsonl"):
    with torch.no_grad():
        rw, rl = seq_logp(ref, prompt, win), seq_logp(ref, prompt, lose)
    margin = (seq_logp(pi, prompt, win) - rw) - (seq_logp(pi, prompt, lose) - rl)
    loss = -F.logsigmoid(0.1 * margin).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
pi.save_pretrained("output/aligned")
