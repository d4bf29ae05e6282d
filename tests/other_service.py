"""The grading service of a run with another copy or another grader, for tests: python -m tests.other_service RUN ...

The file `test-service.json` in the run's folder says how: `copy_s`, how long a copy takes at least; `worker`, the
module of the grader's worker, and without one, a pool that grades at once.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

from a2rl.grading import app as service
from a2rl.grading import submitted_files
from a2rl.grading.pool import GraderPool
from a2rl.linux import untrusted_folder
from tests.run_maker import FakePool

SETTINGS = "test-service.json"
BLOCK = 4096


class ImmediatePool(FakePool):
    """Grades at once, by the digest of the weights."""

    def __init__(self, *_: object) -> None:
        super().__init__()

    def __enter__(self) -> "ImmediatePool":
        return self

    def __exit__(self, *_: object) -> None:
        return


def slowly(copy_s: float) -> Callable[..., None]:
    copy = untrusted_folder.copy_open_file

    def throttled(source: IO[bytes], target: IO[bytes], size: int) -> None:
        def write(block: bytes) -> None:
            target.write(block)
            time.sleep(copy_s * len(block) / size)

        copy(source, cast(IO[bytes], SimpleNamespace(write=write)) if size > BLOCK else target, size)

    return throttled


def main() -> None:
    settings: dict[str, Any] = json.loads((Path(sys.argv[1]) / SETTINGS).read_text())
    if copy_s := settings.get("copy_s"):
        untrusted_folder.BLOCK = settings.get("block", BLOCK)
        vars(submitted_files)["copy_open_file"] = slowly(copy_s)
    worker = settings.get("worker")
    vars(service)["GraderPool"] = partial(GraderPool, worker=worker) if worker else ImmediatePool
    service.main()


if __name__ == "__main__":
    main()
