"""Labels: by which route an agent trained, and why a run failed, each with evidence."""
