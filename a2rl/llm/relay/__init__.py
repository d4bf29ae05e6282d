"""The relay: a reverse proxy to the LLM that holds the API key, counts tokens and records the requests.

An agent gets a loopback URL and a stand-in for its key. Requests of the kinds that an LLM driver makes are forwarded to
the one provider of the run, with the real key; answers are returned as they arrive. So the key never reaches the agent.
The token quota applies to the tokens that the provider counts, not to those that the agent system reports. The record
says which models answered and which server-side tools were offered.

We use no library: LiteLLM's proxy translates between providers and keeps accounts in a database, but a relay must
forward bytes unchanged, stop at a quota, and trust nothing that the agent sends.
"""
