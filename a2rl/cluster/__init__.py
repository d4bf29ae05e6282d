"""Runs on many machines: who works on a run (claims), and the copy of its state that moves with it (a store)."""
