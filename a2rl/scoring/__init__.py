"""Computes scores, their intervals, and the difference between two models from the results of single items."""
