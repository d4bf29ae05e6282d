"""The process between the pipeline and an agent: it ends the agent's whole process tree, whatever happens.

Run as `python -P -m a2rl.supervisor`; speaks JSON lines. Reads an `AgentCommand` on stdin; the end of stdin (the
pipeline wants the agent to stop, or died) ends the tree. Until then lines may follow for an agent that takes messages:
`{"line": TEXT}` goes to the agent's standard input, `{"end": true}` closes that. Writes one `AgentExit` to stdout when
nothing of the agent is left, or when what is left could not be ended in time.

It is two processes, a guard and its child, which does the work; each ends the agent when the other is killed. Both are
subreapers: processes that detach from the agent become their children and are found (a2rl/isolation/tree.py). Should
both be killed, `end_strays` (a2rl/isolation/strays.py) ends what is left, by what was written down here.

An agent with a confinement is started in it (a2rl/isolation/launch.py). The supervisor itself stays outside, where it
can end the agent and answer for its connections. Only the standard library is imported, so that it starts at once.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.isolation import resources, tree
from a2rl.isolation.cgroup import Group
from a2rl.isolation.confinement import Confinement
from a2rl.isolation.disk import DiskWatch
from a2rl.isolation.launch import NotConfined
from a2rl.isolation.lines import Feed, LineReader
from a2rl.isolation.logs import keep_log
from a2rl.isolation.resources import Resources
from a2rl.isolation.shared_memory import SharedMemory, report
from a2rl.isolation.start import Start, short_temporary_folder
from a2rl.isolation.strays import MARKER, Trace
from a2rl.secrets import learn

GRACE_S = 2.0
"""Between the request to end and the kill."""
END_LIMIT_S = 10.0
"""From the request until it gives up, and says what is left."""
LOOK_S = 1.0
REST = 50
"""At least so many times as long as a look at the agent's processes took, there is none."""
LOG_TIMEOUT_S = 2.0


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
    resources: Resources = Resources()
    """What it may use."""
    trace: str = ""
    """File for what `end_strays` needs if nobody is left who could end the agent; outside its reach."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "AgentCommand":
        """From JSON."""
        confinement, limits = fields.pop("confinement"), fields.pop("resources", ())
        return cls(
            **fields,
            confinement=Confinement.of(confinement) if confinement else None,
            resources=Resources.of(limits) if limits else Resources(),
        )


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
    survivors: tuple[tuple[int, str], ...] = ()
    """Pid and printable name of processes that could not be ended."""
    stopped: str = ""
    """Why the supervisor ended it by itself, if it did."""
    lost: bool = False
    """Whether a part of the supervisor was killed, and the agent ended for that."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "AgentExit":
        """From JSON."""
        survivors = tuple((int(pid), str(name)) for pid, name in fields.pop("survivors", ()))
        return cls(**fields, survivors=survivors)


class Hold(NamedTuple):
    """What an agent can be ended by."""

    group: Group | None
    enclosed: bool

    def end(self, grace_s: float = GRACE_S) -> tree.Ended:
        ended = tree.end_tree(self.group, self.enclosed, grace_s, END_LIMIT_S)
        if self.group is not None and not ended.survivors:
            self.group.remove()
        return ended


def guard(command: AgentCommand, inbox: FileIO) -> None:
    """Starts the process that supervises, and takes its place if it is killed. Either reports on standard output."""
    tree.become_subreaper()
    resources.be_ended_last()
    files = resources.raise_file_limit()
    hold = Hold(Group.make(f"a2rl-{os.urandom(6).hex()}"), _encloses(command))
    if command.trace:
        Trace.begin(command.env.get(MARKER, ""), hold.group).write(Path(command.trace))
    memory = _shared_memory(command)
    watched, watching = os.pipe()
    if not (child := os.fork()):
        os.close(watching)
        tree.become_subreaper()
        own = hold._replace(enclosed=_encloses(command))
        ended = Supervision(command, inbox.fileno(), own, watched, files).run()
        report(memory.sweep(), Path(command.log))
        _report(command, ended)
        os._exit(0)
    os.close(watched)
    os.close(inbox.fileno())
    _, status = os.waitpid(child, 0)
    if status:
        ending = hold.end(grace_s=0)
        report(memory.sweep(), Path(command.log))
        _report(command, AgentExit(-signal.SIGKILL, "", ending.killed, survivors=ending.survivors, lost=True))


def _encloses(command: AgentCommand) -> bool:
    """A confined agent has nobody to signal outside. Without a sandbox, set-user-id programs must go on working; and in
    a domain nothing can be mounted, which makes a table of processes of its own, whose end is all of theirs."""
    limits = command.confinement
    return limits is not None and not (limits.bwrap or limits.devices or limits.processes) and tree.enclose()


def _shared_memory(command: AgentCommand) -> SharedMemory:
    """That of the machine, where the agent does not have its own."""
    limits = command.confinement
    shared = limits is not None and not (limits.devices or limits.bwrap)
    return SharedMemory.before((limits.user if limits else 0) or os.geteuid(), shared)


def _report(command: AgentCommand, ended: AgentExit) -> None:
    if command.trace and not ended.survivors:
        with contextlib.suppress(OSError):
            Path(command.trace).unlink()
    with contextlib.suppress(OSError):  # the pipeline died: nobody asks
        os.write(1, f"{json.dumps(ended._asdict())}\n".encode())


class Supervision:
    """One agent, from its start until nothing of it is left."""

    def __init__(self, command: AgentCommand, inbox: int, hold: Hold, watched: int, files: tuple[int, int]) -> None:
        """Args:
        watched: a file that closes when the guard dies.
        files: the limit of open files that the agent gets.
        """
        self._command, self._hold, self._files = command, hold, files
        self._inbox, self._inbox_file, self._watched = LineReader(inbox), inbox, watched
        self._alarm, self._ring = os.pipe()
        self._stopped = ""
        self._is_over = threading.Event()

    def run(self) -> AgentExit:
        """Runs the agent until it ends, or until the inbox closes; nothing of it is left afterwards."""
        try:
            with short_temporary_folder(self._command) as self._command:
                return self._run()
        except OSError as error:
            ended = self._hold.end()
            name = self._command.command[0]
            return AgentExit(None, f"{name}: {error.strerror}", ended.killed, survivors=ended.survivors)
        except NotConfined as error:
            return AgentExit(None, "", self._hold.end().killed, unconfined=str(error))

    def _run(self) -> AgentExit:
        agent = Start(self._command, self._hold.group, self._files).agent()
        threading.Thread(target=tree.reap_all_but, args=(agent.pid,), daemon=True).start()
        logs = self._keep_logs(agent)
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        lost = self._wait(agent)
        # The agent's status is taken before the reaping of its descendants can swallow it.
        exit_code = agent.poll()
        self._is_over.set()
        ended = self._hold.end()
        for thread in (watch, *logs):
            thread.join(LOG_TIMEOUT_S)  # nobody is left who could write; what is in the pipe still goes to the log
        return AgentExit(
            -signal.SIGTERM if exit_code is None else exit_code, "", ended.killed,
            survivors=ended.survivors, stopped=self._stopped, lost=lost,
        )  # fmt: skip

    def _wait(self, agent: "subprocess.Popen[bytes]") -> bool:
        """Returns when the agent has ended or is to be ended; whether that is because the guard is gone."""
        ended, feed = os.pidfd_open(agent.pid), None
        if agent.stdin is not None:
            feed = Feed(os.dup(agent.stdin.fileno()))
            agent.stdin.close()
        while True:
            outbox = [feed.waits_for] if feed is not None and feed.waits_for is not None else []
            ready, writable, _ = select.select([ended, self._inbox_file, self._watched, self._alarm], outbox, [])
            if writable and feed is not None:
                feed.push()
            if self._inbox_file in ready:
                for line in self._inbox.read():
                    self._hand_on(feed, json.loads(line))
            if ended in ready or self._alarm in ready or self._inbox.is_over or self._watched in ready:
                return self._watched in ready and ended not in ready

    def _hand_on(self, feed: Feed | None, message: dict[str, Any]) -> None:
        """Gives the agent a line, or tells it that there will be no more."""
        if feed is None:
            return
        if message.get("end"):
            feed.end()
        elif not feed.put(str(message["line"]).encode()):
            with contextlib.suppress(OSError), Path(self._command.log).open("ab") as log:
                log.write(b"[a2rl: a message was dropped, since the agent reads none]\n")

    def _watch(self) -> None:
        """Writes down what the agent consists of, and measures what it takes of the disk, again and again."""
        command, path = self._command, Path(self._command.trace)
        trace = Trace.begin(command.env.get(MARKER, ""), self._hold.group)
        folders = command.confinement.write if command.confinement else ()
        disk = DiskWatch(dict.fromkeys((command.cwd, *folders)), command.resources.disk)
        while not self._is_over.is_set():
            started = time.monotonic()
            if command.trace:
                trace = trace.look_below(os.getpid())
                trace.write(path)
            looked_s = time.monotonic() - started
            if problem := disk.problem(tree.descendants(os.getpid())):
                self._stopped = problem
                os.write(self._ring, b"!")
                return
            self._is_over.wait(max(LOOK_S, REST * looked_s))

    def _keep_logs(self, agent: "subprocess.Popen[bytes]") -> list[threading.Thread]:
        command = self._command
        sources = ((agent.stdout, command.transcript or command.log), (agent.stderr, command.log))
        logs = [
            threading.Thread(target=keep_log, args=(source, path, path == command.transcript), daemon=True)
            for source, path in sources
            if source is not None
        ]
        for log in logs:
            log.start()
        return logs


def _nothing(*_: object) -> None:
    """A handler and not SIG_IGN: what is ignored stays ignored after exec, and `timeout 60 ...` would never end."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _nothing)  # ended by stdin alone, so that the tree is always ended first
    inbox = FileIO(0, closefd=False)  # without a buffer, so that select knows of every line
    command = AgentCommand.of(json.loads(inbox.readline()))
    learn(command.secrets or {})
    guard(command, inbox)


if __name__ == "__main__":
    main()
