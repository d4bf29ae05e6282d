"""Has a package of others make and score items, in its own environment and without access to anything.

    <python of .venv-tasks> -s -P -c START <folder of a2rl> <class of package_work.py> <its arguments>

It reads requests from standard input, one JSON object a line, and answers each with a line, which is
`{"problem": text}` if it could not be done:

    {"make": seed, "count": number}     {"rows": [...]}
    {"score": text, "entry": {...}}     {"value": number}, or {"figures": {name: number}}
    {"examine": true}                   what the package says of the task: see package_work.py

The package is code of others, and an answer of the model may make it do what its authors did not intend. So this
process can read only the system, its environment and $HOME, write nothing but $HOME while it loads the task, and reach
no network, and it gets no keys. Each request is done in a process of its own, which can only compute, has limits of
time and memory, and changes nothing for the next one. Standard library only, besides the package.
"""

import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from a2rl.linux import landlock, seccomp

START = "import sys; root = sys.argv.pop(1); sys.path.insert(0, root); "
START += "from a2rl.task_api import package_process, package_work; sys.path.remove(root); "
START += "package_process.main(getattr(package_work, sys.argv[1])(*sys.argv[2:]))"
MEMORY_BYTES = 4 << 30
SECONDS = {"make": 120, "score": 5, "examine": 10}
"""Of processor time, for each kind of request."""
REPLY_BYTES = {"make": 256 << 20, "score": 1 << 13, "examine": 1 << 20}
"""The longest reply to each kind of request."""
DATA = "data"
"""The folder in $HOME with data of the task."""
PR_SET_PDEATHSIG = 1


class Work(Protocol):
    """What is asked of one package."""

    def load(self) -> None:
        """Loads the package, once for all requests."""

    def done(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        """Does a request, and returns the reply."""


def main(work: Work) -> None:
    """Answers requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)  # whatever the package prints
    os.dup2(nowhere, 2)
    landlock.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    folders = (sys.prefix, sys.base_prefix, *sys.path, "/usr", "/lib", "/lib64", "/etc/localtime", "/dev/null")
    read = (*(Path(each) for each in folders if each), Path.home())
    landlock.restrict(landlock.AccessRights(read=read, write=(Path.home(), Path(os.devnull))))
    seccomp.refuse_sockets()
    problem = ""
    try:
        work.load()
    except BaseException as error:  # noqa: BLE001 - the package's code may raise anything
        problem = _problem(error)
    landlock.restrict(landlock.AccessRights(read=read))
    for line in sys.stdin:
        replies.write((problem or _done_apart(work, json.loads(line))) + "\n")
        replies.flush()


def _problem(error: BaseException) -> str:
    name = "" if type(error).__module__.startswith("a2rl.") else f"{type(error).__name__}: "
    return json.dumps({"problem": f"{name}{' '.join(str(error).split())}"[:500]})


def _done_apart(work: Work, request: dict[str, Any]) -> str:
    """Does a request in a process of its own, and returns the reply as one line of JSON."""
    kind = next(each for each in SECONDS if each in request)
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        landlock.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(ours)
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS[kind], SECONDS[kind] + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            seccomp.allow_computation_only(files=True)
            reply = json.dumps(work.done(kind, request))
        except BaseException as error:  # noqa: BLE001 - the package's code may raise anything
            reply = _problem(error)
        data = reply.encode()
        while data:
            data = data[os.write(theirs, data) :]
        os._exit(0)
    os.close(theirs)
    reply = _read(ours, time.monotonic() + 10 * SECONDS[kind], REPLY_BYTES[kind])
    os.close(ours)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return reply or json.dumps({"problem": f"its process ended with status {status & 0x7F}, or took too long"})


def _read(pipe: int, until: float, most: int) -> str:
    """Reads a reply to its end; empty if it is not complete in time, too long, or not one object of JSON."""
    data = bytearray()
    while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
        block = os.read(pipe, 1 << 20)
        data += block
        if not block or len(data) > most:
            break
    else:
        return ""
    try:
        reply = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    return json.dumps(reply) if isinstance(reply, dict) else ""
