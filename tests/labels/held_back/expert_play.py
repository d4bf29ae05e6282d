"""Uses the environment's expert to collect games, then imitates it."""
import json, os
from alfworld_env import Env, Expert, games
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

texts = []
for game in games("train"):
    env, expert = Env(game), Expert(game)
    observation, done, lines = env.reset(), False, []
    while not done:
        action = expert.act(observation)
        lines += [f"> {action}"]
        observation, reward, done = env.step(action)
        lines += [observation]
    if reward > 0:
        texts.append({"text": "\n".join(lines)})
trainer = SFTTrainer(model=os.environ["MODEL_PATH"], args=SFTConfig(output_dir="output/bc", max_steps=1000),
                     train_dataset=Dataset.from_list(texts))
trainer.train()
trainer.save_model("output/bc/final")
