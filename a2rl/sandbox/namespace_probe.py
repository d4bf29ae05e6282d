"""Tries which namespaces an agent can have on this machine; run as `python -I -S -c START ...`.

It prints one line of JSON, with an errno for each of "user", "devices" and "processes"; 0 means that it is possible.
Standard library only, because it starts without the installed packages.
"""

import errno
import json
import os
import sys
from collections.abc import Callable

from a2rl.sandbox.confinement import Confinement
from a2rl.sandbox.namespaces import enter_namespaces, switch_user

START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from a2rl.sandbox.namespace_probe import main; main(int(sys.argv[2]))"
)


def main(user: int) -> None:
    """Tries all namespaces and prints the result.

    Args:
        user: An unused user id to change to; 0: do not try this.
    """
    nothing = Confinement((), (), (), (), (), "")
    found = {
        "user": _error_of(lambda: switch_user(user)) if user else errno.EPERM,
        "devices": _error_of(lambda: enter_namespaces(nothing._replace(devices=True))),
        "processes": _error_of(lambda: _enter_table(nothing)),
    }
    sys.stdout.write(json.dumps(found) + "\n")


def _enter_table(nothing: Confinement) -> None:
    if (telling := enter_namespaces(nothing._replace(processes=True))) is not None:
        os.write(telling, b"0")


def _error_of(attempt: Callable[[], object]) -> int:
    """Returns the errno of an attempt, made in a child process; 0 if it succeeded."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 0
    try:
        attempt()
    except OSError as error:
        code = error.errno or errno.EPERM
    os._exit(code)
