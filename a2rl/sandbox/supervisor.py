"""The process between the pipeline and an agent: it ends the agent's whole process tree, whatever happens.

It is run as `python -P -m a2rl.sandbox.supervisor` and communicates in JSON lines. It reads an `AgentCommand` from
standard input. When standard input closes, because the pipeline wants the agent to stop or has died, it ends the
process tree. Before that, messages may follow for an agent that takes them: `{"line": TEXT}` writes a line to the
agent's standard input, `{"end": true}` closes it. The supervisor writes one `AgentExit` to standard output when all
processes of the agent have ended, or when some could not be ended in time.

It consists of two processes, a guard and its child, which does the work; each ends the agent if the other is killed.
Both are subreapers: processes that detach from the agent become their children, so that they are found
(a2rl/linux/process_tree.py). If both are killed, `end_orphans` (a2rl/linux/orphans.py) ends the agent's remaining
processes with the trace that the supervisor wrote.

A confined agent is started in its confinement (a2rl/sandbox/launch.py). The supervisor itself stays outside, where it
can end the agent and check its connections. Standard library only, so that it starts quickly.
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

from a2rl.core.secrets import register_secrets
from a2rl.linux import process_tree as tree
from a2rl.linux import resources
from a2rl.linux.cgroup import ControlGroup
from a2rl.linux.orphans import MARKER, ProcessTrace, short_link
from a2rl.sandbox.agent_log import keep_log
from a2rl.sandbox.broker.network import NetworkLog
from a2rl.sandbox.broker.server import Broker
from a2rl.sandbox.command import AgentCommand, AgentExit, LineReader, LineWriter
from a2rl.sandbox.launch import Launch, NotConfinedError
from a2rl.sandbox.storage import DiskWatch, remove_left_files

OUTPUT_TIMEOUT_S = 5.0
GRACE_S = 2.0
"""The time between the request to end and the kill."""
END_LIMIT_S = 10.0
"""The time from the request until it gives up and reports the survivors."""
WATCH_INTERVAL_S = 1.0
PAUSE_FACTOR = 50
"""The pause after listing the agent's processes, in multiples of the processor time that it took."""
LOG_TIMEOUT_S = 2.0


def spawn_agent(command: AgentCommand, group: ControlGroup | None, files: tuple[int, int]) -> "subprocess.Popen[bytes]":
    """Starts the process of an agent, in its control group and with its limits and confinement.

    Args:
        files: The agent's soft and hard limit of open files.

    Raises:
        OSError: Its program cannot be run.
        NotConfinedError: Its confinement failed.
    """
    held = group.limit(command.resources) if group is not None else []
    running = resources.count_user_tasks()

    def become_agent() -> None:
        tree.die_with_parent()
        is_held = group is not None and group.enter()
        resources.restore_file_limit(files)
        resources.apply_limits(command.resources, held if is_held else (), running)

    def run(arguments: list[str], *descriptors: int) -> "subprocess.Popen[bytes]":
        assert threading.active_count() == 1, "with other threads, locks may be held between fork and exec"
        return subprocess.Popen(
            arguments,
            cwd=command.cwd,
            env=command.env,
            stdin=subprocess.PIPE if command.takes_messages else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if command.transcript else subprocess.STDOUT,
            start_new_session=True,
            pass_fds=descriptors,
            preexec_fn=become_agent,  # noqa: PLW1509 - there are no threads yet
        )

    if command.confinement is None:
        return run(command.command)
    launch = Launch(command.command, command.confinement, command.cwd, command.env)
    agent = run(launch.command, launch.theirs.fileno())
    try:
        listener = launch.wait()
    except NotConfinedError as error:
        raise NotConfinedError(str(error) or _last_output_line(agent)) from error
    if listener is not None:
        Broker(listener, command.confinement, NetworkLog(Path(command.confinement.network_log))).start()
    return agent


def _last_output_line(process: "subprocess.Popen[bytes]") -> str:
    process.kill()
    said = b""
    with contextlib.suppress(subprocess.TimeoutExpired):
        said = b"\n".join(filter(None, process.communicate(timeout=OUTPUT_TIMEOUT_S)))
    lines = said.decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line), "it ended without a message")


def with_short_temporary_folder(command: AgentCommand) -> AgentCommand:
    """Gives the agent a short link to its TMPDIR, which is removed when its processes have ended, by whoever ends them.

    Programs (Python's multiprocessing, vLLM, tmux) create local sockets there, whose paths are limited to 107
    characters.
    """
    if not {MARKER, "TMPDIR"} <= command.env.keys():
        return command
    link = short_link(command.env[MARKER])
    try:
        link.symlink_to(command.env["TMPDIR"])
    except OSError:  # a machine that lets nobody write there; only such programs as need a short path would fail
        return command
    return command._replace(env={**command.env, "TMPDIR": str(link)})


class Terminator(NamedTuple):
    """Ends an agent by the best method that this machine supports."""

    group: ControlGroup | None
    enclosed: bool

    def end(self, grace_s: float = GRACE_S) -> tree.Ended:
        """Ends all processes of the agent and removes its control group."""
        ended = tree.end_tree(self.group, self.enclosed, grace_s, END_LIMIT_S)
        if self.group is not None and not ended.survivors:
            self.group.remove()
        return ended


def guard(command: AgentCommand, inbox: FileIO) -> None:
    """Starts the supervising process, and takes over if that process is killed; one of the two reports the result."""
    tree.become_subreaper()
    resources.protect_from_oom_killer()
    files = resources.raise_file_limit()
    terminator = Terminator(ControlGroup.make(f"a2rl-{os.urandom(6).hex()}"), _encloses(command))
    if command.trace:
        ProcessTrace.begin(command.env.get(MARKER, ""), terminator.group).write(Path(command.trace))
    watched, watching = os.pipe()
    if not (child := os.fork()):
        os.close(watching)
        tree.become_subreaper()
        own = terminator._replace(enclosed=_encloses(command))
        ended = Supervision(command, inbox.fileno(), own, watched, files).run()
        _report(command, ended)
        os._exit(0)
    os.close(watched)
    os.close(inbox.fileno())
    _, status = os.waitpid(child, 0)
    if status:
        ending = terminator.end(grace_s=0)
        _report(command, AgentExit(-signal.SIGKILL, "", ending.killed, survivors=ending.survivors, lost=True))


def _encloses(command: AgentCommand) -> bool:
    """Enters a signal scope, if the agent is confined and does not need mounts; returns whether the scope is in force.

    Without a sandbox there is no scope, because set-user-id programs must keep working. Inside a scope, nothing can be
    mounted, but agents with their own devices or process table need mounts. An agent with its own process table does
    not need a scope, because the end of the table ends all of its processes.
    """
    limits = command.confinement
    return limits is not None and not (limits.bwrap or limits.devices or limits.processes) and tree.enter_signal_scope()


def _report(command: AgentCommand, ended: AgentExit) -> None:
    """Cleans up and tells the pipeline how the agent ended."""
    limits = command.confinement
    if limits is not None and limits.user and not (limits.devices or limits.bwrap):
        remove_left_files(limits.user, Path(command.log))
    with contextlib.suppress(OSError):
        short_link(command.env.get(MARKER, "")).unlink()
    if command.trace and not ended.survivors:
        with contextlib.suppress(OSError):
            Path(command.trace).unlink()
    with contextlib.suppress(OSError):  # the pipeline died and does not read
        os.write(1, f"{json.dumps(ended._asdict())}\n".encode())


class Supervision:
    """Supervises one agent from its start until all of its processes have ended."""

    def __init__(
        self, command: AgentCommand, inbox: int, terminator: Terminator, watched: int, files: tuple[int, int]
    ) -> None:
        """Prepares the supervision.

        Args:
            inbox: The file descriptor from which the pipeline's messages are read.
            terminator: Ends the agent.
            watched: A file descriptor that closes when the guard dies.
            files: The agent's soft and hard limit of open files.
        """
        self._command, self._terminator, self._files = command, terminator, files
        self._inbox, self._inbox_file, self._watched = LineReader(inbox), inbox, watched
        self._alarm, self._ring = os.pipe()
        self._stopped = ""
        self._is_over = threading.Event()

    def run(self) -> AgentExit:
        """Runs the agent until it ends or the inbox closes, then ends all of its remaining processes."""
        try:
            self._command = with_short_temporary_folder(self._command)
            return self._run()
        except OSError as error:
            ended = self._terminator.end()
            name = self._command.command[0]
            return AgentExit(None, f"{name}: {error.strerror}", ended.killed, survivors=ended.survivors)
        except NotConfinedError as error:
            return AgentExit(None, "", self._terminator.end().killed, unconfined=str(error))

    def _run(self) -> AgentExit:
        agent = spawn_agent(self._command, self._terminator.group, self._files)
        threading.Thread(target=tree.reap_all_but, args=(agent.pid,), daemon=True).start()
        logs = self._keep_logs(agent)
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        lost = self._wait(agent)
        # Read the agent's exit status first: reaping its descendants could discard it.
        exit_code = agent.poll()
        self._is_over.set()
        ended = self._terminator.end()
        for thread in (watch, *logs):
            thread.join(LOG_TIMEOUT_S)  # all writers have ended; the threads log what is still in the pipes
        return AgentExit(
            -signal.SIGTERM if exit_code is None else exit_code, "", ended.killed,
            survivors=ended.survivors, stopped=self._stopped, lost=lost,
        )  # fmt: skip

    def _wait(self, agent: "subprocess.Popen[bytes]") -> bool:
        """Waits until the agent has ended or must be ended; returns True if the reason is the death of the guard."""
        ended, feed = os.pidfd_open(agent.pid), None
        if agent.stdin is not None:
            feed = LineWriter(os.dup(agent.stdin.fileno()))
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

    def _hand_on(self, feed: LineWriter | None, message: dict[str, Any]) -> None:
        """Passes a message on: writes a line to the agent's standard input, or closes it."""
        if feed is None:
            return
        if message.get("end"):
            feed.end()
        elif not feed.put(str(message["line"]).encode()):
            with contextlib.suppress(OSError), Path(self._command.log).open("ab") as log:
                log.write(b"[a2rl: a message was dropped, because the agent does not read them]\n")

    def _watch(self) -> None:
        """Repeatedly records the agent's processes, counts them, and measures its use of the disk."""
        command, path = self._command, Path(self._command.trace)
        trace = ProcessTrace.begin(command.env.get(MARKER, ""), self._terminator.group)
        folders = command.confinement.write if command.confinement else ()
        disk = DiskWatch(dict.fromkeys((command.cwd, *folders)), command.resources.disk, bool(command.confinement))
        # The kernel limits the processes of other users, and those of a control group, where there is one.
        is_root = os.geteuid() == 0 and not (command.confinement and command.confinement.user)
        most, look_at, crowd = command.resources.processes if is_root else 0, 0.0, ""
        while not self._is_over.is_set():
            if command.trace and time.monotonic() >= look_at:
                begun_s = time.thread_time()
                trace = trace.update(os.getpid())
                trace.write(path)
                if most and (count := sum(resources.count_tasks(pid) for pid, _ in trace.seen)) > 2 * most:
                    crowd = f"it has {count:,} processes and threads, more than twice {most:,}"
                look_at = time.monotonic() + PAUSE_FACTOR * (time.thread_time() - begun_s)
            if problem := crowd or disk.check(tree.descendants(os.getpid())):
                self._stopped = problem
                os.write(self._ring, b"!")
                return
            self._is_over.wait(WATCH_INTERVAL_S)  # it measures less often if that takes long

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


def _ignore_signal(*_: object) -> None:
    """Ignores a signal. SIG_IGN would be inherited through exec, and `timeout 60 ...` would never end."""


def main() -> None:
    """Reads the command from stdin and supervises the agent."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore_signal)  # only the end of stdin ends it, so that the tree is always ended first
    inbox = FileIO(0, closefd=False)  # unbuffered, so that select sees every line
    command = AgentCommand.of(json.loads(inbox.readline()))
    register_secrets(command.secrets or {})
    guard(command, inbox)


if __name__ == "__main__":
    main()
