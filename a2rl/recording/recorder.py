"""Records what an agent does while it works: from outside, in places that it cannot access.

- `code/`: a git history of the agent's code, with one commit for each recorded state;
- `logs/output.jsonl`: which files were created, changed and removed in its output folder;
- `logs/processes.jsonl`: command lines, start and end of processes, and files that they had open;
- `logs/telemetry.jsonl`: processor time, memory and processes; `logs/gpu.csv` if there are NVIDIA GPUs;
- `logs/transcript-<attempt>/`: copies of the transcript that the agent system keeps in its HOME;
- `logs/training.jsonl`: a copy of what the agent's Python programs noted of their training (`tracer.py`).

The pause between two passes is a multiple of the processor time that a pass took, so that recording uses less than 2%
of a core, however much there is to record.
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

from a2rl.agent_systems.definition import Agent
from a2rl.core.event_log import EventLog
from a2rl.core.files import MACHINE_ERRORS, TEMPORARY
from a2rl.core.processes import tied_to_parent
from a2rl.core.secrets import scrub, scrub_file
from a2rl.linux.untrusted_folder import Entry, Limits, UntrustedFolder, printable_name
from a2rl.recording.code_history import code_state, is_full, snapshot_code
from a2rl.recording.processes import ProcessLog
from a2rl.recording.tracer import FILE, MAX_BYTES
from a2rl.run.directory import RunDir
from a2rl.run.gpu_share import allocation_of

INTERVAL_S = 3.0
TELEMETRY_INTERVAL_S = 6.0
PAUSE_FACTOR = 60
"""The pause after a pass, in multiples of the processor time that it took, including git's: less than 2% of a core."""
LIMITS = Limits(entries=5000, depth=32, seconds=2.0)
"""Limits for listing the output folder, or for finding transcripts."""
LOCK_TIMEOUT_S = 1.0
"""How long a pass waits if a submission has locked the code's history. It can be short, because the next pass records
the code."""
GPU_TIMEOUT_S = 5.0
MAX_TRANSCRIPT_BYTES = 256 << 20
"""Maximum size of all transcripts of an attempt."""
MAX_TRANSCRIPTS = 100
"""Maximum number of transcripts that are copied in an attempt; those of earlier attempts do not count."""
UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")
MAX_TROUBLE_BYTES = 1 << 20
MAX_TROUBLE_CHARS = 500


class FileState(NamedTuple):
    """The state of a file when it was last examined."""

    size: int
    changed_ns: int


class Recorder:
    """Records one attempt. Call `look` often; it returns at once unless it is time for the next pass.

    Contract: it never raises, whatever the agent does or the machine lacks, and never waits for the agent. Failures are
    logged in `logs/recorder.jsonl`.

    Args:
        agent: The agent system, which says where transcripts are.
        supervisor: The process id of the agent's supervisor, which may have ended.
        since_ns: When the attempt began, in nanoseconds of Unix time; transcripts that are older belong to earlier
            attempts. None: now.
    """

    def __init__(self, run: RunDir, agent: Agent, supervisor: int, attempt: int, since_ns: int | None = None) -> None:
        self._run = run
        self._troubles = EventLog(run.logs / "recorder.jsonl", MAX_TROUBLE_BYTES)
        self._trouble: dict[str, str] = {}
        """The last failure of each part that was logged; parts that work have none."""
        self._cut = set[str]()
        """The parts of which it was logged that they are not whole."""
        self._supervisor: psutil.Process | None = None
        with suppress(psutil.Error):  # it has ended
            self._supervisor = psutil.Process(supervisor)
        self._output = EventLog(run.logs / "output.jsonl")
        self._telemetry = EventLog(run.logs / "telemetry.jsonl")
        log = EventLog(run.logs / "processes.jsonl")
        self._processes = ProcessLog(log, supervisor, run.workspace, lambda what: self._note_cut("processes", what))
        self._code: object = None
        self._files: dict[str, FileState] = {}
        self._training: FileState | None = None
        self._copies = TranscriptCopies(run, agent, attempt, since_ns)
        self._next_look = self._next_telemetry = 0.0
        self._gpus: subprocess.Popen[bytes] | None = None
        with self._part("gpu"):
            self._gpus = _watch_gpus(run)

    def look(self) -> None:
        """Records what is new, if it is time for the next pass."""
        now = time.monotonic()
        if now < self._next_look:
            return
        before_s = _cpu_s()
        self._look()
        if now >= self._next_telemetry:
            with self._part("telemetry"):
                self._measure()
            self._next_telemetry = now + TELEMETRY_INTERVAL_S
        self._next_look = time.monotonic() + max(INTERVAL_S, PAUSE_FACTOR * (_cpu_s() - before_s))

    def close(self) -> None:
        """Makes the last pass; call it when the agent has ended."""
        if self._gpus is not None:
            with self._part("gpu"):
                self._gpus.kill()
                self._gpus.wait(GPU_TIMEOUT_S)
        self._look()
        with self._part("processes"):
            self._processes.close(self._run.clock.elapsed_s())

    def _look(self) -> None:
        with self._part("processes"):
            self._processes.look(self._run.clock.elapsed_s())
        with self._part("code"):
            self._look_at_code()
        with self._part("output"):
            self._look_at_output()
        with self._part("training"):
            self._look_at_training()
        with self._part("transcript"):
            self._copies.update()

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """Runs one part of the work. Its failures are logged, not raised, so that the other parts still run."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - recording is optional: no failure of it may end the agent's run
            trouble = f"{type(error).__name__}: {error}"[:MAX_TROUBLE_CHARS]
            if trouble != self._trouble.get(name):
                with suppress(OSError):
                    self._troubles.write(part=name, trouble=trouble)
            self._trouble[name] = trouble
        else:
            self._trouble.pop(name, None)

    def _note_cut(self, part: str, what: str) -> None:
        """Logs, once for each part, that it is not recorded as a whole."""
        if part not in self._cut:
            self._troubles.write(part=part, trouble=f"not all is recorded: {what}"[:MAX_TROUBLE_CHARS])
            self._cut.add(part)

    def _look_at_code(self) -> None:
        code, missed = self._run.workspace / "code", list[str]()
        state = code_state(code, missed.append)
        if state != self._code:
            after = f"after {self._run.clock.elapsed_s():.0f} s"
            commit = snapshot_code(code, self._run.code, after, LOCK_TIMEOUT_S, missed.append)
            if commit is None and is_full(self._run.code):
                self._processes.note_full()
            self._code = state
        if missed:
            self._note_cut("code", f"it has more than that, such as code/{printable_name(missed[0])}")

    def _look_at_output(self) -> None:
        found, elapsed_s = _output_of(self._run.workspace), round(self._run.clock.elapsed_s(), 1)
        for path, file in found.items():
            if file != self._files.get(path):
                event = "changed" if path in self._files else "created"
                self._output.write(elapsed_s=elapsed_s, event=event, path=path, bytes=file.size)
        for path in self._files.keys() - found.keys():
            self._output.write(elapsed_s=elapsed_s, event="removed", path=path)
        self._files = found

    def _look_at_training(self) -> None:
        with suppress(FileNotFoundError), UntrustedFolder.at(self._run.workspace) as workspace:
            with workspace.open(FILE) as file:
                status = os.fstat(file.fileno())
            state = FileState(status.st_size, status.st_ctime_ns)
            if state != self._training:
                _copy_scrubbed(workspace, FILE, self._run.training_log, MAX_BYTES)
                self._training = state

    def _measure(self) -> None:
        cpu_s, memory, processes = 0.0, 0, 0
        for process in _tree(self._supervisor):
            try:
                times = process.cpu_times()
                # The time of children that have ended, and that it has waited for, is added to its own.
                cpu_s += times.user + times.system + times.children_user + times.children_system
                memory += process.memory_info().rss
                processes += 1
            except psutil.Error:
                continue  # it has ended in the meantime
        self._telemetry.write(
            elapsed_s=round(self._run.clock.elapsed_s(), 1),
            cpu_s=round(cpu_s, 2),
            memory_bytes=memory,
            processes=processes,
            free_memory_bytes=psutil.virtual_memory().available,
            load=round(os.getloadavg()[0], 2),
        )


class TranscriptCopies:
    """Keeps copies of the transcripts in an agent's HOME that have changed since the attempt began."""

    def __init__(self, run: RunDir, agent: Agent, attempt: int, since_ns: int | None = None) -> None:
        self._patterns = agent.transcript.patterns if agent.transcript else ()
        self._workspace = run.workspace
        self._target = run.logs / f"transcript-{attempt}"
        self._since_ns = time.time_ns() if since_ns is None else since_ns
        self._seen: dict[str, FileState] = {}

    def update(self) -> None:
        """Copies the transcripts that have changed. If the agent removes a transcript, its last copy is kept.

        An agent that rewrites its own file changes the copy, too, so a copy proves nothing. Comparing it with the file
        would not help: the agent can leave the file as it is, and lead its program's further lines to another one.

        Raises:
            OSError: The agent has replaced its HOME by something that we do not open, or the disk is full.
        """
        if not self._patterns:
            return
        with UntrustedFolder.at(self._workspace) as workspace, workspace.folder(".home") as home:
            for entry in self._new_in(home)[:MAX_TRANSCRIPTS]:
                if entry.path in self._seen or len(self._seen) < MAX_TRANSCRIPTS:
                    self._copy(home, entry)

    def _new_in(self, home: UntrustedFolder) -> list[Entry]:
        found: list[Entry] = []
        for pattern in self._patterns:
            with suppress(FileNotFoundError):
                found += home.match(pattern, LIMITS)
        return [
            entry
            for entry in sorted(found, key=lambda each: (each.path not in self._seen, each))  # known ones first
            if entry.changed_ns >= self._since_ns and self._seen.get(entry.path) != (entry.size, entry.changed_ns)
        ]

    def _copy(self, home: UntrustedFolder, entry: Entry) -> None:
        self._target.mkdir(exist_ok=True)
        room = MAX_TRANSCRIPT_BYTES - sum(size for path, (size, _) in self._seen.items() if path != entry.path)
        try:
            _copy_scrubbed(home, entry.path, self._target / copy_name(entry.path), max(0, room))
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise
            return  # it was removed or replaced in the meantime
        self._seen[entry.path] = FileState(entry.size, entry.changed_ns)


def _copy_scrubbed(folder: UntrustedFolder, path: str, target: Path, max_bytes: int) -> None:
    """Replaces our copy of a file by one of its present state, without secrets."""
    incoming = target.with_name(target.name + TEMPORARY)
    incoming.unlink(missing_ok=True)  # left by a recorder that was killed
    folder.copy(path, incoming, max_bytes)
    scrub_file(incoming)
    incoming.replace(target)


def copy_name(path: str) -> str:
    """Returns the name of a transcript's copy: visible ASCII without secrets, different for each path, and sorted like
    the paths. The manifest has it, so no part of it may be a secret for `scrub`."""
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    name = scrub(UNUSUAL.sub("-", scrub(path))[-180:].lstrip(".-"))  # again: what is left may look like a key only now
    return f"{UNUSUAL.sub('-', name).lstrip('-') or 'transcript'}.{digest}"


def _cpu_s() -> float:
    """Returns the processor time of this thread and of all child processes that have ended, in seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


def _output_of(workspace: Path) -> dict[str, FileState]:
    """Returns the files in the output folder by path; empty if there is no such folder."""
    try:
        with UntrustedFolder.at(workspace) as folder, folder.folder("output") as output:
            return {
                printable_name(entry.path): FileState(entry.size, entry.changed_ns) for entry in output.walk("", LIMITS)
            }
    except FileNotFoundError:
        return {}


def _tree(supervisor: psutil.Process | None) -> list[psutil.Process]:
    try:
        return supervisor.children(recursive=True) if supervisor else []
    except psutil.Error:
        return []  # it has ended


def _watch_gpus(run: RunDir) -> "subprocess.Popen[bytes] | None":
    """Starts a program that logs the use of the run's GPUs; of all, if none were allocated to it."""
    program, share = shutil.which("nvidia-smi"), allocation_of(run)
    if program is None or (share is not None and not share.all):
        return None
    only = [f"--id={','.join(sorted({str(gpu.index) for gpu in share.all}))}"] if share is not None else []
    interval = f"--loop={TELEMETRY_INTERVAL_S:.0f}"
    fields = "timestamp,index,utilization.gpu,memory.used,power.draw"
    with (run.logs / "gpu.csv").open("ab") as output:
        return subprocess.Popen(
            tied_to_parent([program, *only, f"--query-gpu={fields}", "--format=csv,noheader,nounits", interval]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
        )
