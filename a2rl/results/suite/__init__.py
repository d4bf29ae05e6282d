"""The report over many runs: a leaderboard, figures and tables, as a page and as files for further analysis.

write_suite_report(name, runs, settings)   # reports/<name>/index.html, report.json, runs.csv, figures/
"""
