"""The report of a run: one self-contained HTML page.

We use no plotting library, because it would either load scripts from the network or embed megabytes of them.
"""

from a2rl.results.report.page import draw_report, report_files, write_report

__all__ = ["draw_report", "report_files", "write_report"]
