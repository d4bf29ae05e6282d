"""`python -P -m a2rl.labels RUN`: prints the labels of a run as JSON.

It is a separate process because it parses what the agent wrote, which can take any amount of memory or crash a parser.
"""

import resource
import sys
from pathlib import Path

from a2rl.labels.run_labels import label_run
from a2rl.linux.process_tree import die_with_parent
from a2rl.run.directory import RunDir

MAX_MEMORY_BYTES = 4 << 30
MAX_CPU_S = 100


def main() -> None:
    """Labels the run in the arguments."""
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    sys.setrecursionlimit(5000)
    sys.stdout.write(label_run(RunDir(Path(sys.argv[1]))).model_dump_json())


if __name__ == "__main__":
    main()
