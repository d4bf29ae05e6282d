#!/usr/bin/env bash
# The agent's code belongs into code/, where its history is kept.
cp -r "$(dirname "$0")"/{agent.py,routes} code/
exec python code/agent.py
