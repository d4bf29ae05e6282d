"""Questions that take several searches, and a judge for the answers."""
