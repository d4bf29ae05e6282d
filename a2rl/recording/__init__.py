"""Records what an agent does while it works, in files that the agent cannot access."""
