"""The report of a run: one self-contained page."""

from a2rl.report.page import write_report

__all__ = ["write_report"]
