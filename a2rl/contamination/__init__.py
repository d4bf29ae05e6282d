"""Whether a model has seen the eval set: how it behaves on fresh items, and what the agent wrote."""
