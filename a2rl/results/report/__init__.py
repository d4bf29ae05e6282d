"""The report of a run: one self-contained HTML page, by `page`.

No plotting library draws its chart: `a2rl verify` draws the page again and compares it byte for byte, and that must not
depend on the version of a library. The chart also has links to the agent's steps.
"""
