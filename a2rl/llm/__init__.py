"""The path from an agent to its LLM: API keys, the proxy, and the relay that holds the key."""
