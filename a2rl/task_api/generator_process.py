"""Makes and scores items with the package reasoning_gym, in its own environment and without access to anything.

    <python of .venv-tasks> -s -P -c START <folder of a2rl> <generator> <parameters>

It reads requests from standard input, one JSON object a line, and answers each with a line, which is
`{"problem": text}` if it could not be done:

    {"make": seed, "count": number}     {"rows": [...]}
    {"score": text, "entry": {...}}     {"value": number}
    {"examine": true}                   {"calls": [names]}, the functions that the generator's module calls

The package is code of others, and an answer of the model may make it do what its authors did not intend. So this
process can read only the system and its environment, write nothing and reach no network, and it gets no keys. Each
request is done in a process of its own, which can only compute, has limits of time and memory, and changes nothing for
the next one. Standard library only, besides the package.
"""

import ast
import importlib
import inspect
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from a2rl.linux import landlock, seccomp

START = "import sys; root = sys.argv.pop(1); sys.path.insert(0, root); "
START += "from a2rl.task_api.generator_process import main; sys.path.remove(root); main(*sys.argv[1:])"
MEMORY_BYTES = 4 << 30
SECONDS = {"make": 60, "score": 5, "examine": 10}
"""Of processor time, for each kind of request."""
REPLY_BYTES = {"make": 64 << 20, "score": 1 << 13, "examine": 1 << 20}
"""The longest reply to each kind of request."""
PR_SET_PDEATHSIG = 1


def main(generator: str, parameters: str) -> None:
    """Answers requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)  # whatever the package prints
    os.dup2(nowhere, 2)
    landlock.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    folders = (sys.prefix, sys.base_prefix, *sys.path, "/usr", "/lib", "/lib64", "/etc/localtime", "/dev/null")
    landlock.restrict(landlock.AccessRights(read=tuple(Path(each) for each in folders if each)))
    seccomp.refuse_sockets()
    importlib.import_module("reasoning_gym")
    for line in sys.stdin:
        reply = _done_apart(generator, json.loads(parameters), json.loads(line))
        replies.write(reply + "\n")
        replies.flush()


def _done_apart(generator: str, parameters: dict[str, Any], request: dict[str, Any]) -> str:
    """Does a request in a process of its own, and returns the reply as one line of JSON."""
    kind = next(each for each in SECONDS if each in request)
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        landlock.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(ours)
        try:
            reply = json.dumps(_done(generator, parameters, request, kind))
        except BaseException as error:  # noqa: BLE001 - the package's code may raise anything
            reply = json.dumps({"problem": f"{type(error).__name__}: {error}"[:500]})
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
    data = b""
    while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
        block = os.read(pipe, 1 << 20)
        data += block
        if not block or len(data) > most:
            break
    else:
        return ""
    try:
        return json.dumps(json.loads(data)) if isinstance(json.loads(data), dict) else ""
    except (ValueError, RecursionError):
        return ""


def _done(generator: str, parameters: dict[str, Any], request: dict[str, Any], kind: str) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS[kind], SECONDS[kind] + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seccomp.allow_computation_only(files=True)
    package = sys.modules["reasoning_gym"]
    made = package.create_dataset(generator, size=1, seed=0, **parameters)
    if kind == "score":
        return {"value": float(made.score_answer(request["score"], request["entry"]))}
    if kind == "examine":
        tree = ast.parse(inspect.getsource(sys.modules[type(made).__module__]))
        calls = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
        return {"calls": sorted({getattr(each, "id", getattr(each, "attr", "")) for each in calls})}
    made = package.create_dataset(generator, size=request["count"], seed=request["make"], **parameters)
    entries = [made[place] for place in range(request["count"])]
    return {"rows": [{"question": str(each["question"]), "answer": each["answer"], "entry": each} for each in entries]}
