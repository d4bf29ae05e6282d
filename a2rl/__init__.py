"""a2rl: can an LLM agent, alone and within a budget, engineer the RL post-training of a base model?

This is the library behind the pipeline. `tasks/` describes what is measured, `stages/` is the pipeline as plain
functions, and `flows/` runs those functions under Prefect. Imports point one way: flows -> stages -> tasks -> a2rl.
Paper: arXiv 2604.10547.
"""

__version__ = "0.1.0"
