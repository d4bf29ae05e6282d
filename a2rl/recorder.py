"""Writes down what an agent does while it works: from outside, into places that it cannot reach.

- `code/`: a git history of the agent's code, one commit for each state that was seen;
- `logs/output.jsonl`: what appeared, changed and vanished in its output folder;
- `logs/telemetry.jsonl`: processor time, memory and processes; `logs/gpu.csv` where there are NVIDIA GPUs;
- `logs/transcript-<attempt>/`: copies of the transcript that the agent system keeps in its HOME.

It looks again after a time that is a multiple of what looking took, so that it stays below 2% of a core however much
there is to look at.
"""

import hashlib
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from a2rl.agent import Agent
from a2rl.beneath import Entry, Folder, Limits, text_of
from a2rl.code_history import code_state, snapshot_code
from a2rl.event_log import EventLog
from a2rl.files import OURS, TEMPORARY
from a2rl.process import tied
from a2rl.run import RunDir
from a2rl.secrets import scrub, scrub_file

INTERVAL_S = 3.0
TELEMETRY_S = 6.0
REST = 60
"""At least so many times the processor time that a look took, git's included, it rests: less than 2% of a core."""
LIMITS = Limits(entries=5000, depth=32, seconds=2.0)
"""Of a look at the output folder or at transcripts."""
LOCK_TIMEOUT_S = 1.0
"""Is the code's history at work for a submission, the next look is soon enough."""
GPU_TIMEOUT_S = 5.0
MAX_TRANSCRIPT_BYTES = 256 << 20
"""Of all transcripts of an attempt."""
MAX_TRANSCRIPTS = 100
MAX_TROUBLE_BYTES = 1 << 20
MAX_TROUBLE_CHARS = 500


class Seen(NamedTuple):
    """A file as it was when it was last looked at."""

    size: int
    changed_ns: int


class Recorder:
    """Records one attempt; `look` is called often and mostly returns at once.

    Contract: it never raises, whatever the agent does or the machine lacks, and waits for nothing of the agent's. What
    could not be recorded is in `logs/recorder.jsonl`.

    Args:
        supervisor: process id; it may have ended.
        since_ns: when the attempt began (Unix time); transcripts that are older are of earlier ones. None: now.
    """

    def __init__(self, run: RunDir, agent: Agent, supervisor: int, attempt: int, since_ns: int | None = None) -> None:
        self._run = run
        self._troubles = EventLog(run.logs / "recorder.jsonl", MAX_TROUBLE_BYTES)
        self._trouble: dict[str, str] = {}
        """What keeps each part from working, as it was last written down."""
        self._supervisor: psutil.Process | None = None
        with suppress(psutil.Error):  # it has ended
            self._supervisor = psutil.Process(supervisor)
        self._output = EventLog(run.logs / "output.jsonl")
        self._telemetry = EventLog(run.logs / "telemetry.jsonl")
        self._code: object = None
        self._files: dict[str, Seen] = {}
        self._copies = TranscriptCopies(run, agent, attempt, since_ns)
        self._next_look = self._next_telemetry = 0.0
        self._gpus: subprocess.Popen[bytes] | None = None
        with self._part("gpu"):
            self._gpus = _watch_gpus(run.logs / "gpu.csv")

    def look(self) -> None:
        """Writes down what is new, if it is time."""
        now = time.monotonic()
        if now < self._next_look:
            return
        before_s = _cpu_s()
        self._look()
        if now >= self._next_telemetry:
            with self._part("telemetry"):
                self._measure()
            self._next_telemetry = now + TELEMETRY_S
        self._next_look = time.monotonic() + max(INTERVAL_S, REST * (_cpu_s() - before_s))

    def close(self) -> None:
        """The last look, when the agent is gone."""
        if self._gpus is not None:
            with self._part("gpu"):
                self._gpus.kill()
                self._gpus.wait(GPU_TIMEOUT_S)
        self._look()

    def _look(self) -> None:
        with self._part("code"):
            self._look_at_code()
        with self._part("output"):
            self._look_at_output()
        with self._part("transcript"):
            self._copies.update()

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """A part of the work, which the others can do without."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no reason to end the agent's run
            trouble = f"{type(error).__name__}: {error}"[:MAX_TROUBLE_CHARS]
            if trouble != self._trouble.get(name):
                with suppress(OSError):
                    self._troubles.write(part=name, trouble=trouble)
            self._trouble[name] = trouble
        else:
            self._trouble.pop(name, None)

    def _look_at_code(self) -> None:
        state = code_state(self._run.workspace / "code")
        if state != self._code:
            after = f"after {self._run.clock.elapsed_s():.0f} s"
            snapshot_code(self._run.workspace / "code", self._run.code, after, LOCK_TIMEOUT_S)
            self._code = state

    def _look_at_output(self) -> None:
        found, elapsed_s = _output_of(self._run.workspace), round(self._run.clock.elapsed_s(), 1)
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
        self._workspace = run.workspace
        self._target = run.logs / f"transcript-{attempt}"
        self._since_ns = time.time_ns() if since_ns is None else since_ns
        self._seen: dict[str, Seen] = {}

    def update(self) -> None:
        """Copies what has changed. A transcript that the agent has removed is kept as it was last seen.

        Raises:
            OSError: the agent has made of its HOME something that we do not open, or there is no room for the copies.
        """
        if not self._patterns:
            return
        with Folder.at(self._workspace) as workspace, workspace.folder(".home") as home:
            for entry in self._new_in(home):
                self._copy(home, entry)

    def _new_in(self, home: Folder) -> list[Entry]:
        found: list[Entry] = []
        for pattern in self._patterns:
            with suppress(FileNotFoundError):
                found += home.match(pattern, LIMITS)
        return [
            entry
            for entry in sorted(found)[:MAX_TRANSCRIPTS]
            if entry.changed_ns >= self._since_ns and self._seen.get(entry.path) != (entry.size, entry.changed_ns)
        ]

    def _copy(self, home: Folder, entry: Entry) -> None:
        self._target.mkdir(exist_ok=True)
        room = MAX_TRANSCRIPT_BYTES - sum(size for path, (size, _) in self._seen.items() if path != entry.path)
        target = self._target / kept_name(scrub(entry.path))
        incoming = target.with_name(target.name + TEMPORARY)
        try:
            incoming.unlink(missing_ok=True)  # of a recorder that was killed
            home.copy(entry.path, incoming, max(0, room))
            scrub_file(incoming)
            incoming.replace(target)
        except OSError as error:
            if error.errno in OURS:
                raise
            return  # gone or replaced meanwhile, or no longer a file
        self._seen[entry.path] = Seen(entry.size, entry.changed_ns)


def kept_name(path: str) -> str:
    """What a transcript's copy is called: visible ASCII, in the order of their paths, one name for each path."""
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', path)[-180:].lstrip('.')}-{digest}"


def _cpu_s() -> float:
    """Processor time of this thread, and of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


def _output_of(workspace: Path) -> dict[str, Seen]:
    """What lies in the output folder; nothing where there is none."""
    try:
        with Folder.at(workspace) as folder, folder.folder("output") as output:
            return {text_of(entry.path): Seen(entry.size, entry.changed_ns) for entry in output.walk("", LIMITS)}
    except FileNotFoundError:
        return {}


def _tree(supervisor: psutil.Process | None) -> list[psutil.Process]:
    try:
        return supervisor.children(recursive=True) if supervisor else []
    except psutil.Error:
        return []  # it has ended


def _watch_gpus(path: Path) -> "subprocess.Popen[bytes] | None":
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    fields = "timestamp,index,utilization.gpu,memory.used,power.draw"
    with path.open("ab") as output:
        return subprocess.Popen(
            tied([program, f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--loop={TELEMETRY_S:.0f}"]),
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL,
        )  # fmt: skip
