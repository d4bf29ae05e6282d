"""PPO with a clipped surrogate."""
from trl import DPOConfig as PPOConfig, DPOTrainer as PPOTrainer
from rows import pairs

ppo_trainer = PPOTrainer("models/base", args=PPOConfig("output/ppo"), train_dataset=pairs())
ppo_trainer.train()  # proximal policy optimisation
