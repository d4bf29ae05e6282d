"""Open-ended instructions, judged against a reference model."""
