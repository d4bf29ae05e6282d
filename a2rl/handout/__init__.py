"""Files that tasks hand to agents as they are; what they import lies beside them there."""
