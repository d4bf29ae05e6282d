"""`unit` tests modules, `contract` what tasks, agents and the grading service promise, `flow` the whole."""
