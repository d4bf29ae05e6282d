"""The broker: checks the system calls that an agent may not make on its own, and performs those that it allows."""
