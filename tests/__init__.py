"""The tests: `unit` one module each, `contract` what tasks, agents and the grading service promise, `flow` the whole."""
