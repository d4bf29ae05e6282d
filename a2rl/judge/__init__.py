"""A model that judges: which one (`params`), the client of its OpenAI-compatible endpoint (`client`), the answers that
were paid for (`cache`), and judges that the repo serves itself, over the same HTTP API (`local`).
"""
