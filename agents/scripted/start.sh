#!/usr/bin/env bash
# The agent's code belongs into code/, where its history is kept.
cp "$(dirname "$0")"/{agent,routes}.py code/
exec python code/agent.py
