"""Grading: jobs that score a checkpoint in a new process, the pool that runs them, and the service for agents."""
