"""`python -P -m a2rl.labels RUN`: prints the labels of a run as JSON.

It is a separate process because it parses what the agent wrote, which can take any amount of memory or crash a parser:
`write_labels` in records.py limits it.
"""

import sys
from pathlib import Path

from a2rl.labels.run_labels import label_run
from a2rl.run.directory import RunDir

if __name__ == "__main__":
    sys.stdout.write(label_run(RunDir(Path(sys.argv[1]))).model_dump_json())
