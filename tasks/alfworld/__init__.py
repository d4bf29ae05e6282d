"""Household tasks in a text world, one command at a time (ALFWorld, Shridhar et al. 2021, arXiv 2010.03768)."""
