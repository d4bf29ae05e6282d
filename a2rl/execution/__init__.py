"""The agent's part of a run: from its workspace and prompt to the end of its process tree."""
