"""The definition of a task, the catalog of tasks, and their data. The tasks themselves are in `tasks/`."""
