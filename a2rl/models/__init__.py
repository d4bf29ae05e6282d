"""Finds base models, checks checkpoints, and identifies them by a digest of their weights."""
