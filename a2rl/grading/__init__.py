"""Grading: jobs that score a checkpoint in a fresh process, the pool that runs them, and the service agents talk to."""
