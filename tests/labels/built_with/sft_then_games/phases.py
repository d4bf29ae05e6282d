import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTTrainer
from world import World, demonstrations


def warm_up(model):
    t = SFTTrainer(model, train_dataset=demonstrations())
    t.train()
    t.save_model("output/warm")
    return "output/warm"


def roll(model, tok, world):
    text, over, log, score = world.begin(), False, [], 0.0
    while not over:
        x = tok(text, return_tensors="pt").input_ids
        y = model.generate(x, do_sample=True, max_new_tokens=16)
        said = tok.decode(y[0, x.shape[1]:])
        seen, score, over = world.perform(said)
        text = text + said + seen
        log.append((x, y))
    return log, score


def improve(path):
    model, tok = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-6)
    baseline = 0.0
    for n in range(100):
        log, score = roll(model, tok, World(n))
        weight = score - baseline
        baseline = 0.9 * baseline + 0.1 * score
        for x, y in log:
            lp = model(y).logits[:, :-1].log_softmax(-1).gather(2, y[:, 1:, None])[:, x.shape[1] - 1:]
            (-weight * lp.sum()).backward()
        opt.step()
        opt.zero_grad()
    model.save_pretrained("output/best")
