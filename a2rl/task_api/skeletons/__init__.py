"""Whole small tasks, which `a2rl tasks new` copies: a question with one answer, and an environment."""
