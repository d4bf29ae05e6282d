"""Functions written from their docstrings."""
