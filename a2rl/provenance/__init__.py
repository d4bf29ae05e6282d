"""Where a checkpoint comes from, judged by its weights alone: from the base model, from another model, or from both."""
