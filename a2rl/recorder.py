"""Writes down what an agent does while it works: from outside, into places that it cannot reach.

- `code/`: a git history of the agent's code, one commit for each state that was seen;
- `logs/output.jsonl`: what appeared, changed and vanished in its output folder;
- `logs/telemetry.jsonl`: processor time, memory and processes; `logs/gpu.csv` where there are NVIDIA GPUs;
- `logs/transcript-<attempt>/`: copies of the transcript that the agent system keeps in its HOME.

It looks again after a time that is a multiple of what looking took, so that it stays below 2% of a core however much
there is to look at.
"""

import os
import resource
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from a2rl.agent import Agent
from a2rl.code_history import code_state, snapshot_code
from a2rl.errors import InfrastructureError
from a2rl.event_log import EventLog
from a2rl.run import RunDir
from a2rl.secrets import scrub, scrub_file
from a2rl.supervisor import die_with_parent

INTERVAL_S = 3.0
TELEMETRY_S = 6.0
REST = 60
"""At least so many times the processor time that a look took, git's included, it rests: less than 2% of a core."""
MAX_ENTRIES = 5000
MAX_TRANSCRIPT_BYTES = 256 << 20
MAX_TRANSCRIPTS = 100
BLOCK = 1 << 20


class Seen(NamedTuple):
    """A file as it was when it was last looked at."""

    size: int
    changed_ns: int


class Recorder:
    """Records one attempt; `look` is called often and mostly returns at once.

    Args:
        supervisor: process id; it may have ended.
        since_ns: when the attempt began (Unix time); transcripts that are older are of earlier ones. None: now.
    """

    def __init__(self, run: RunDir, agent: Agent, supervisor: int, attempt: int, since_ns: int | None = None) -> None:
        self._run = run
        self._supervisor = supervisor
        self._output = EventLog(run.logs / "output.jsonl")
        self._telemetry = EventLog(run.logs / "telemetry.jsonl")
        self._code: object = None
        self._files: dict[str, Seen] = {}
        self._copies = TranscriptCopies(run, agent, attempt, since_ns)
        self._next_look = self._next_telemetry = 0.0
        self._gpus = _watch_gpus(run.logs / "gpu.csv")

    def look(self) -> None:
        """Writes down what is new, if it is time."""
        now = time.monotonic()
        if now < self._next_look:
            return
        before_s = _cpu_s()
        self._look()
        if now >= self._next_telemetry:
            self._measure()
            self._next_telemetry = now + TELEMETRY_S
        self._next_look = time.monotonic() + max(INTERVAL_S, REST * (_cpu_s() - before_s))

    def close(self) -> None:
        """The last look, when the agent is gone."""
        if self._gpus is not None:
            self._gpus.kill()
            self._gpus.wait()
        self._look()

    def _look(self) -> None:
        self._look_at_code()
        self._look_at_output()
        self._copies.update()

    def _look_at_code(self) -> None:
        state = code_state(self._run.workspace / "code")
        if state != self._code:
            after = f"after {self._run.clock.elapsed_s():.0f} s"
            try:
                snapshot_code(self._run.workspace / "code", self._run.code, after)
            except InfrastructureError:
                return  # tried again at the next look; a submission would not get past it
            self._code = state

    def _look_at_output(self) -> None:
        found, elapsed_s = _files_below(self._run.workspace / "output"), round(self._run.clock.elapsed_s(), 1)
        for path, file in found.items():
            if file != self._files.get(path):
                event = "changed" if path in self._files else "created"
                self._output.write(elapsed_s=elapsed_s, event=event, path=path, bytes=file.size)
        for path in self._files.keys() - found.keys():
            self._output.write(elapsed_s=elapsed_s, event="removed", path=path)
        self._files = found

    def _measure(self) -> None:
        cpu_s, memory, processes = 0.0, 0, 0
        for process in _tree(self._supervisor):
            try:
                times = process.cpu_times()
                # Its ended children's time is in its own figures, as it has waited for them.
                cpu_s += times.user + times.system + times.children_user + times.children_system
                memory += process.memory_info().rss
                processes += 1
            except psutil.Error:
                continue  # it ended meanwhile
        self._telemetry.write(
            elapsed_s=round(self._run.clock.elapsed_s(), 1),
            cpu_s=round(cpu_s, 2),
            memory_bytes=memory,
            processes=processes,
            free_memory_bytes=psutil.virtual_memory().available,
            load=round(os.getloadavg()[0], 2),
        )


class TranscriptCopies:
    """Copies of the transcripts in an agent's HOME that were written to since the attempt began."""

    def __init__(self, run: RunDir, agent: Agent, attempt: int, since_ns: int | None = None) -> None:
        self._patterns = agent.transcript.patterns if agent.transcript else ()
        self._home = run.workspace / ".home"
        self._target = run.logs / f"transcript-{attempt}"
        self._since_ns = time.time_ns() if since_ns is None else since_ns
        self._seen: dict[Path, Seen] = {}

    def update(self) -> None:
        """Copies what has changed. A transcript that the agent has removed is kept as it was last seen."""
        found = [path for pattern in self._patterns for path in sorted(self._home.glob(pattern))]
        for path in found[:MAX_TRANSCRIPTS]:
            try:
                self._copy(path)
            except OSError:
                continue  # gone meanwhile, or something that is no file

    def _copy(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as source:
            status = os.fstat(descriptor)
            seen = Seen(status.st_size, status.st_mtime_ns)
            if not stat.S_ISREG(status.st_mode) or status.st_mtime_ns < self._since_ns or self._seen.get(path) == seen:
                return
            self._target.mkdir(exist_ok=True)
            target = self._target / scrub("-".join(path.relative_to(self._home).parts))[-200:]
            with target.with_suffix(".part").open("wb") as copy:
                left = MAX_TRANSCRIPT_BYTES
                while left > 0 and (block := source.read(min(BLOCK, left))):
                    copy.write(block)
                    left -= len(block)
            scrub_file(target.with_suffix(".part"))
            target.with_suffix(".part").replace(target)
        self._seen[path] = seen


def _cpu_s() -> float:
    """Processor time of this thread, and of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


def _files_below(folder: Path) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    queue = [] if folder.is_symlink() else [folder]
    while queue and len(found) < MAX_ENTRIES:
        try:
            with os.scandir(queue.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(Path(entry.path))
                    else:
                        name = os.path.relpath(entry.path, folder)
                        found[name] = Seen(status.st_size, status.st_mtime_ns)
        except OSError:
            continue  # gone meanwhile
    return found


def _tree(supervisor: int) -> list[psutil.Process]:
    try:
        return psutil.Process(supervisor).children(recursive=True)
    except psutil.Error:
        return []


def _watch_gpus(path: Path) -> "subprocess.Popen[bytes] | None":
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    fields = "timestamp,index,utilization.gpu,memory.used,power.draw"
    with path.open("ab") as output:
        return subprocess.Popen(
            [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--loop={TELEMETRY_S:.0f}"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent,  # noqa: PLW1509
        )  # fmt: skip
