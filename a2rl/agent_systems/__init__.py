"""Agent systems: their definitions, their installation, and the transcripts that they write."""
