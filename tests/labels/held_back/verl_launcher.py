import os
import subprocess
import sys

OVERRIDES = [
    "data.train_files=data/train.parquet",
    f"actor_rollout_ref.model.path={os.environ['MODEL_PATH']}",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "algorithm.adv_estimator=grpo",
    "custom_reward_function.path=code/reward.py",
    "trainer.total_epochs=3",
]
subprocess.run([sys.executable, "-m", "verl.trainer.main_ppo", *OVERRIDES], check=True)
