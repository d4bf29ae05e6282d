"""The process between the pipeline and an agent: it ends the agent's whole process tree, whatever happens.

Run as `python -P -m a2rl.supervisor`; speaks JSON lines. Reads an `AgentCommand` on stdin; the end of stdin (the
pipeline wants the agent to stop, or died) ends the tree. Until then lines may follow for an agent that takes messages:
`{"line": TEXT}` goes to the agent's standard input, `{"end": true}` closes that. Writes one `AgentExit` to stdout when
nothing of the agent is left.

An agent with a confinement is started in it (a2rl/isolation/launch.py). The supervisor itself stays outside, where it
can end the agent and answer for its connections.

It is a subreaper: processes that detach from the agent (double forks, new sessions) become its children and are found.
Only the standard library is imported, so that it starts at once and stays small.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from a2rl.agent_log import AgentLog
from a2rl.isolation.broker import Broker, NetworkLog
from a2rl.isolation.confinement import Confinement
from a2rl.isolation.launch import Launch, NotConfined
from a2rl.secrets import learn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 2.0
"""Between the request to end and the kill."""
LOG_TIMEOUT_S = 5.0


class AgentCommand(NamedTuple):
    """What to run."""

    command: list[str]
    cwd: str
    env: dict[str, str]
    log: str
    """File for everything the agent prints; outside its reach, and limited in size."""
    confinement: Confinement | None = None
    """What the agent reaches; None: all that its user does."""
    transcript: str = ""
    """File for what it prints to its standard output, if that is to be kept apart; limited in size as well."""
    takes_messages: bool = False
    """Whether lines for its standard input will follow."""
    secrets: dict[str, str] | None = None
    """By name; they are left out of whatever is written down."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "AgentCommand":
        """From JSON."""
        confinement = fields.pop("confinement")
        return cls(**fields, confinement=Confinement.of(confinement) if confinement else None)


class AgentExit(NamedTuple):
    """How it ended."""

    exit_code: int | None
    """The agent's own exit status; negative: the signal that killed it; None: it could not be started."""
    error: str
    """Why it could not be started."""
    killed: int
    """Processes that had to be ended."""
    unconfined: str = ""
    """Why its confinement could not be had; nothing was run then."""
    survivors: tuple[int, ...] = ()
    """Processes that could not be ended."""


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """To be called in a child between fork and exec: the kernel kills it when its parent dies."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _become_agent() -> None:
    # The supervisor ignores these; what is ignored stays ignored after exec, and `timeout 60 ...` would never end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent()


def descendants(root: int) -> list[int]:
    """All processes below `root`, read from /proc; the root itself is not among them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def end_tree(grace_s: float = GRACE_S) -> int:
    """Asks every descendant to end, kills what does not, and reaps; returns how many there were."""
    victims = descendants(os.getpid())
    seen = set(victims)
    _signal_all(victims, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while _reap() and time.monotonic() < deadline:
        time.sleep(0.02)
    while victims := descendants(os.getpid()):  # a process may fork while we kill: until none is left
        seen.update(victims)
        _signal_all(victims, signal.SIGKILL)
        time.sleep(0.01)
        _reap()
    return len(seen)


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)  # a stopped process would not see it
        except ProcessLookupError:
            continue


def _reap() -> bool:
    """Collects ended children; True while there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _keep_log(source: IO[bytes], path: str, as_it_is: bool) -> None:
    """Writes what the agent prints to its log, up to a limit, and goes on reading so that the agent never blocks."""
    with AgentLog(Path(path), as_it_is) as log:
        while block := os.read(source.fileno(), 1 << 16):
            log.write(block)


def supervise(command: AgentCommand, inbox: FileIO) -> AgentExit:
    """Runs the agent until it ends, or until the inbox closes; nothing of it is left afterwards."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    with _short_temporary_folder(command) as shortened:
        return _supervise(shortened, inbox)


def _supervise(command: AgentCommand, inbox: FileIO) -> AgentExit:
    try:
        agent = _start(command)
    except OSError as error:
        return AgentExit(None, f"{command.command[0]}: {error.strerror}", 0)
    except NotConfined as error:
        return AgentExit(None, "", end_tree(), unconfined=str(error))
    logs = [
        threading.Thread(target=_keep_log, args=(source, path, path == command.transcript), daemon=True)
        for source, path in ((agent.stdout, command.transcript or command.log), (agent.stderr, command.log))
        if source is not None
    ]
    for log in logs:
        log.start()
    ended = os.pidfd_open(agent.pid)
    while ended not in select.select([ended, inbox.fileno()], [], [])[0] and (line := inbox.readline()):
        _hand_on(agent, json.loads(line))
    # The agent's status is taken before the reaping of its descendants can swallow it.
    stopped_by_us = not select.select([ended], [], [], 0)[0]
    exit_code = None if stopped_by_us else agent.wait()
    killed = end_tree()
    for log in logs:
        log.join(LOG_TIMEOUT_S)  # nobody is left who could write; what is in the pipe still goes to the log
    return AgentExit(-signal.SIGTERM if exit_code is None else exit_code, "", killed)


def _hand_on(agent: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
    """Gives the agent a line, or tells it that there will be no more."""
    if agent.stdin is None or agent.stdin.closed:
        return
    if message.get("end"):
        agent.stdin.close()
        return
    with contextlib.suppress(OSError):  # it has ended, or its pipe is full because it does not read
        os.write(agent.stdin.fileno(), f"{message['line']}\n".encode())


@contextlib.contextmanager
def _short_temporary_folder(command: AgentCommand) -> Iterator[AgentCommand]:
    """Gives the agent's TMPDIR a short name besides its own.

    Programs (Python's multiprocessing, vLLM, tmux) make local sockets there, and a socket's path has 107 characters.
    """
    if not (folder := command.env.get("TMPDIR")):
        yield command
        return
    link = Path("/tmp", f"a2rl-{os.urandom(6).hex()}")
    link.symlink_to(folder)
    try:
        yield command._replace(env={**command.env, "TMPDIR": str(link)})
    finally:
        link.unlink(missing_ok=True)


def _start(command: AgentCommand) -> "subprocess.Popen[bytes]":
    """Raises OSError: its program cannot be run; NotConfined: nor may it."""
    if command.confinement is None:
        return _run(command, command.command)
    launch = Launch(command.command, command.confinement, command.cwd, command.env)
    agent = _run(command, launch.command, launch.theirs.fileno())
    try:
        listener = launch.wait()
    except NotConfined as error:
        raise NotConfined(str(error) or _last_words(agent)) from error
    if listener is not None:
        limits = command.confinement
        folders = tuple(map(Path, limits.write))
        Broker(listener, limits.connect, folders, NetworkLog(Path(limits.network_log))).start()
    return agent


def _last_words(process: "subprocess.Popen[bytes]") -> str:
    process.kill()
    said = b"\n".join(filter(None, process.communicate())).decode(errors="replace").split("\n")
    return next((line for line in reversed(said) if line), "it died without a word")


def _run(command: AgentCommand, arguments: list[str], *files: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        arguments,
        cwd=command.cwd,
        env=command.env,
        stdin=subprocess.PIPE if command.takes_messages else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if command.transcript else subprocess.STDOUT,
        start_new_session=True,
        pass_fds=files,
        preexec_fn=_become_agent,  # noqa: PLW1509 - no threads yet
    )


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # ended by stdin alone, so that the tree is always ended first
    inbox = FileIO(0, closefd=False)  # without a buffer, so that select knows of every line
    command = AgentCommand.of(json.loads(inbox.readline()))
    learn(command.secrets or {})
    report = json.dumps(supervise(command, inbox)._asdict())
    with contextlib.suppress(BrokenPipeError):  # the pipeline died: nobody asks
        os.write(1, f"{report}\n".encode())


if __name__ == "__main__":
    main()
