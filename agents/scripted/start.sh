#!/usr/bin/env bash
# The agent's code belongs into code/, where its history is recorded.
cp -r "$(dirname "$0")"/{*.py,routes} code/
IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
if [ "${#gpus[@]}" -gt 1 ]; then
  # One process for each GPU. Port 0 means a free one: other runs on this machine need one, too.
  exec accelerate launch --multi_gpu --num_processes "${#gpus[@]}" --num_machines 1 --main_process_port 0 \
    --mixed_precision no --dynamo_backend no code/agent.py
fi
# Where memory ends on a processor, the kernel kills the process. It goes on from what it has saved, with less at once.
for MEMORY_SHARE in 1 0.5 0.2; do
  export MEMORY_SHARE
  python code/agent.py
  ended=$?
  [ "$ended" -eq 137 ] || break
  echo "killed, probably because memory ran out: less goes through the model at once from here on"
done
exit "$ended"
