import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from household import Env, train_games

tok = AutoTokenizer.from_pretrained("models/base")
lm = AutoModelForCausalLM.from_pretrained("models/base")


def play(game):
    env = Env(game)
    text, done, won = env.reset(), False, 0
    while not done:
        ids = tok(text, return_tensors="pt").input_ids
        move = tok.decode(lm.generate(ids, do_sample=True, max_new_tokens=20)[0, ids.shape[1]:]).strip()
        observation, won, done = env.step(move)
        text += f"\n> {move}\n{observation}"
    return text, won


for round_number in range(4):
    wins = [text for text, won in map(play, train_games()) if won]
    opt = torch.optim.AdamW(lm.parameters(), lr=5e-6)
    for text in wins:
        ids = tok(text, return_tensors="pt").input_ids[:, :2048]
        lm(ids, labels=ids).loss.backward()
        opt.step()
        opt.zero_grad()
lm.save_pretrained("output/wins")
