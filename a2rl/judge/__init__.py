"""LLM judges: which one is used (`params`), how it is asked (`annotator`, `parsers`), the client of its endpoint
(`client`), the cache of paid answers (`cache`), the count of those that failed (`failures`), what a run spends
(`account`), its trial before a run (`trial`), and judges of this machine behind the same HTTP API: rules and models
(`local`).
"""
