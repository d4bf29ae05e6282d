"""The tests: `unit` for modules, `contract` for tasks, agents and the grading service, `flow` for whole runs."""
