#!/bin/bash
set -e
python3 prepare.py
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    data.train_files=$HOME/data/train.parquet \
    actor_rollout_ref.model.path=$MODEL_PATH \
    critic.model.path=$MODEL_PATH \
    critic.optim.lr=1e-5 \
    trainer.total_training_steps=200
