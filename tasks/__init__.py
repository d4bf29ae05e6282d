"""The tasks: one folder each, found by its `task.py`."""
