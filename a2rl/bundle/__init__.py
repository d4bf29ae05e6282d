"""A run as one file that a stranger can check on another machine. See docs/audit.md."""
