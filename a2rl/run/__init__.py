"""One run: its settings, its directory, and the records and events in it."""
