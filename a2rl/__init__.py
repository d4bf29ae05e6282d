"""a2rl: can an LLM agent, alone and within a budget, engineer the RL post-training of a base model?

The library behind the pipeline: everything that has weight lives here. `tasks/` describes what is measured, `stages/`
is the pipeline as plain functions, `flows/` runs those functions under Prefect. Imports point one way:
flows -> stages -> tasks -> a2rl. Paper: arXiv 2604.10547.
"""

__version__ = "0.1.0"
