#!/bin/bash
export HYDRA_FULL_ERROR=1
python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=128 \
  actor_rollout_ref.model.path="$MODEL_PATH" actor_rollout_ref.rollout.n=5
