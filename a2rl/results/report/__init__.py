"""The report of a run: one self-contained HTML page.

No plotting library draws its chart: `a2rl verify` draws the page again and compares it byte for byte, and that must not
depend on the version of a library. The chart also has links to the agent's steps.
"""

from a2rl.results.report.page import draw_report, report_files, write_report

__all__ = ["draw_report", "report_files", "write_report"]
