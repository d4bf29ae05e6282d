"""`python -P -m a2rl.results.report RUN`: draws the report of a run.

It is a separate process because the report shows what the agent wrote: `draw_report` limits it.
"""

import sys
from pathlib import Path

from a2rl.core.settings import Settings
from a2rl.llm.keys import receive_keys
from a2rl.results.report import write_report
from a2rl.run.directory import RunDir

if __name__ == "__main__":
    receive_keys(sys.stdin)
    write_report(RunDir(Path(sys.argv[1])), Settings.load())
