#!/usr/bin/env bash
# The agent's code belongs into code/, where its history is recorded.
cp -r "$(dirname "$0")"/{*.py,routes} code/
exec python code/agent.py
