"""Runs and tasks in the formats of other tools."""
