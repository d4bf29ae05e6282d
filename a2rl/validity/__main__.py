"""`python -P -m a2rl.validity RUN MODULE:CHECK ...`: makes checks of a run and prints a line of JSON after each.

It is a separate process because checks read what an agent wrote: see `run_checks_apart`.
"""

import sys
from importlib import import_module
from pathlib import Path

from a2rl.core.settings import Settings
from a2rl.llm.keys import receive_keys
from a2rl.run.directory import RunDir
from a2rl.validity.checks import CheckMade, run_checks
from a2rl.validity.evidence import RunEvidence


def main() -> None:
    """Makes the checks in the arguments."""
    receive_keys(sys.stdin)
    folder, *names = sys.argv[1:]
    evidence = RunEvidence(RunDir(Path(folder)), Settings.load())
    for module, _, check in (name.partition(":") for name in names):
        done = run_checks(evidence, [getattr(import_module(module), check)])
        made = CheckMade(run=done.runs[0], findings=tuple(done.findings))
        sys.stdout.write(f"{made.model_dump_json()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
