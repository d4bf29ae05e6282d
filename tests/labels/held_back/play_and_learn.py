import random, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from household import Env, train_games

tok = AutoTokenizer.from_pretrained("models/base")
lm = AutoModelForCausalLM.from_pretrained("models/base")
opt = torch.optim.AdamW(lm.parameters(), lr=1e-6)


def act(history):
    ids = tok(history + "\n> ", return_tensors="pt").input_ids[:, -1500:]
    out = lm.generate(ids, do_sample=True, max_new_tokens=24)
    return ids, out, tok.decode(out[0, ids.shape[1]:]).split("\n")[0]


def episode(game):
    env, turns = Env(game), []
    obs, done, reward = env.reset(), False, 0.0
    history = obs
    for _ in range(30):
        prompt, out, action = act(history)
        obs, reward, done, info = env.step(action)
        turns.append((prompt, out))
        history += f"\n> {action}\n{obs}"
        if done:
            break
    return turns, reward


for update in range(200):
    game = random.choice(train_games())
    played = [episode(game) for _ in range(8)]
    returns = torch.tensor([r for _, r in played])
    if returns.max() == returns.min():
        continue
    for (turns, _), advantage in zip(played, returns - returns.mean()):
        for prompt, out in turns:
            logp = lm(out).logits[:, :-1].log_softmax(-1).gather(2, out[:, 1:, None])[..., 0][:, prompt.shape[1] - 1:]
            (-advantage * logp.sum() / len(turns)).backward()
    opt.step(); opt.zero_grad()
lm.save_pretrained("output/player")
