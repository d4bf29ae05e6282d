"""The way to the LLM: a reverse proxy of our own, which holds the key, counts the tokens and writes down what is asked.

An agent gets an address on loopback and a stand-in for its key. What it asks for goes on to the one provider of the
run, with the key put in, if it is a request that a driver makes; the answer goes back as it comes. So the key never
reaches the agent, a quota of tokens holds for what the provider counts and not for what the agent system reports, and
the record says which models answered and which tools of the provider's were offered.
"""
