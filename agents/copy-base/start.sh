#!/usr/bin/env bash
# The agent's code belongs into code/, where its history is recorded.
cp "$(dirname "$0")/agent.py" code/agent.py
exec python code/agent.py
