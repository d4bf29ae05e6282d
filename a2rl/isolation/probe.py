"""What of its own an agent can have here, found by trying: `python -I -S -c ...` prints a line of JSON.

Each of "user", "devices" and "processes" with the number of the error that stands in the way, 0 if there is none.
Only the standard library is imported.
"""

import errno
import json
import os
import sys
from collections.abc import Callable

from a2rl.isolation.confinement import Confinement
from a2rl.isolation.namespaces import become, enter

START = "import sys; sys.path.insert(0, sys.argv[1]); from a2rl.isolation.probe import main; main(int(sys.argv[2]))"


def main(user: int) -> None:
    """Tries everything.

    Args:
        user: the number of a user that nobody is; 0: no other user is wanted.
    """
    nothing = Confinement((), (), (), (), (), "")
    found = {
        "user": _error_of(lambda: become(user)) if user else errno.EPERM,
        "devices": _error_of(lambda: enter(nothing._replace(devices=True))),
        "processes": _error_of(lambda: _enter_table(nothing)),
    }
    sys.stdout.write(json.dumps(found) + "\n")


def _enter_table(nothing: Confinement) -> None:
    if (telling := enter(nothing._replace(processes=True))) is not None:
        os.write(telling, b"0")


def _error_of(attempt: Callable[[], object]) -> int:
    """In a process of its own."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 0
    try:
        attempt()
    except OSError as error:
        code = error.errno or errno.EPERM
    os._exit(code)
