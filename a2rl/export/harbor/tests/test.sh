#!/bin/bash
# Grades the agent's checkpoint, which is all that comes from its environment. If the grader fails, there is no reward, which is not zero.
cd /opt/a2rl && exec python -P -m a2rl export grade-for-harbor --task {{ task.id }} --variant {{ variant }} \
    --base-model models/base --submitted /workspace/output/final --reward /logs/verifier/reward.json
