#!/usr/bin/env bash
# The agent's code belongs into code/, where its history is recorded.
cp -r "$(dirname "$0")"/{*.py,routes} code/
IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
if [ "${#gpus[@]}" -gt 1 ]; then
  exec accelerate launch --num_processes "${#gpus[@]}" code/agent.py # one process for each GPU
fi
exec python code/agent.py
