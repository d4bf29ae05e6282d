"""The observer: the process that reads the files that an agent writes, and its owner in the stage `execute`
(`observing`).

    python -P -m a2rl.execution.observer watch RUN ATTEMPT SUPERVISOR SINCE_NS    records the attempt until stdin closes
    python -P -m a2rl.execution.observer summary RUN ATTEMPT    prints a summary of its transcript, as JSON

It is a separate process because the agent can make its files slow or harmful to read, in any amount of time and memory:
the clock must not wait for that, and the run must not fail. The process may be killed at any time.
"""

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from a2rl.agent_systems.definition import Agent, find_agent
from a2rl.agent_systems.installation import Installation
from a2rl.agent_systems.transcripts.ending import Account
from a2rl.core.errors import InfrastructureError, last_words
from a2rl.core.event_log import Background, log_failure
from a2rl.core.files import FrozenModel
from a2rl.core.processes import Child, RestartedChild, child_environment, module_command
from a2rl.core.settings import Settings
from a2rl.linux.process_tree import die_with_parent
from a2rl.linux.resources import lower_limit
from a2rl.llm.keys import keys_message, receive_keys
from a2rl.llm.relay.request_log import read_llm_use
from a2rl.recording.recorder import Recorder
from a2rl.recording.trajectory import last_message, read_attempt, transcript_path, write_trajectory
from a2rl.run.directory import RunDir, pipeline_log
from a2rl.run.records import Usage

SUMMARY_TIMEOUT_S = 120.0
MAX_MESSAGE_CHARS = 20_000
OBSERVER = "a2rl.execution.observer"
LAST_LOOK_TIMEOUT_S = 30.0
"""The time for the observer to examine the workspace for the last time, after the agent has ended."""
POLL_INTERVAL_S = 0.5
MAX_MEMORY_BYTES = 6 << 30
"""The limit of the address space. A transcript that needs more is not read."""
ANSWERED = b"answered"
MAX_READ_BYTES = 4 << 20
MAX_LINE_BYTES = 16 << 20


class TranscriptSummary(FrozenModel):
    """What a transcript reports. Fields are empty if it does not report them or cannot be read."""

    account: Account | None = None
    """What it says about the end of the attempt."""
    last_message: str = ""
    """The end of what the agent said."""
    session: str | None = None
    """The session id with which the agent system can continue."""
    usage: Usage | None = None
    """The work of all attempts so far."""


def transcript_summary(run: RunDir, agent: Agent, settings: Settings, attempt: int) -> TranscriptSummary:
    """Reads the transcript in a child process, which also writes `trajectory.json`.

    It never raises and returns within `SUMMARY_TIMEOUT_S`; the summary is empty if reading failed.
    """
    if agent.transcript is None:
        return TranscriptSummary()
    command = module_command(OBSERVER, "summary", str(run.root), str(attempt))
    try:
        done = subprocess.run(
            command, cwd=settings.root, env=child_environment(settings), input=keys_message({}).encode(),
            capture_output=True, timeout=SUMMARY_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise InfrastructureError(last_words(done.stderr.decode(errors="replace"), "it was killed"))
        return TranscriptSummary.model_validate_json(done.stdout)
    except (OSError, ValueError, InfrastructureError, subprocess.TimeoutExpired) as error:
        log_failure(pipeline_log(run), "the transcript could not be read", error)
        return TranscriptSummary()


def summarise_transcript(run: RunDir, agent: Agent, settings: Settings, attempt: int) -> TranscriptSummary:
    """Reads the transcript in this process and writes `trajectory.json`; called by the child process."""
    reading = read_attempt(run, agent, attempt)
    return TranscriptSummary(
        account=reading.account(),
        last_message=last_message(reading)[-MAX_MESSAGE_CHARS:],
        session=reading.session_id,
        usage=write_trajectory(run, agent, Installation(agent, settings).version, read_llm_use(run)),
    )


@contextmanager
def observing(run: RunDir, settings: Settings, attempt: int, supervisor: int) -> Iterator[threading.Event]:
    """Keeps an attempt's observer alive; where it cannot be started, the attempt goes on and is not recorded.

    The event is set when the agent has answered the messages sent to it.
    """
    answered, arguments = threading.Event(), ("watch", run.root, attempt, supervisor, time.time_ns())

    def note(problem: str) -> None:
        log_failure(pipeline_log(run), "the observer", InfrastructureError(problem))

    def listen(words: Iterable[bytes]) -> None:
        for word in words:
            if word.strip() == ANSWERED:
                answered.set()

    def start() -> Child:
        log = run.logs / "observer.log"
        child = Child.of_module(OBSERVER, *arguments, settings=settings, log=log, answers=True)
        child.tell(keys_message({}))
        threading.Thread(target=listen, args=(child.answers,), daemon=True).start()
        return child

    try:
        observer = RestartedChild(start, lambda _: note("it has died"), lambda: note("it is not started again"))
    except OSError as error:
        note(f"it cannot be started: {error}")
        yield answered
        return
    observer.watch()
    try:
        yield answered
    finally:
        if not observer.close(LAST_LOOK_TIMEOUT_S):
            note(f"its last look took more than {LAST_LOOK_TIMEOUT_S:.0f} s")


class AnswerListener:
    """Finds the end of an answer in an agent's output, of which it reads a limited amount at a time.

    Args:
        transcript: The file with the output; None if there is nothing to listen to.
    """

    def __init__(self, transcript: Path | None) -> None:
        self._transcript = transcript
        self._read = 0
        self._line = b""

    def has_heard_an_answer(self) -> bool:
        """Reads new output and says whether an answer has ended in it."""
        if self._transcript is None:
            return False
        try:
            with self._transcript.open("rb") as file:
                file.seek(self._read)
                new = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return False
        self._read += len(new)
        *whole, self._line = (self._line + new).split(b"\n")
        if len(self._line) > MAX_LINE_BYTES:  # an event that ends an answer is never this long
            self._line = b""
        return any(_ends_an_answer(line) for line in whole)


def _ends_an_answer(line: bytes) -> bool:
    """Says whether a line of Claude Code's output is the event that ends an answer."""
    if b'"result"' not in line or len(line) > MAX_LINE_BYTES:
        return False
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(event, dict) and event.get("type") == "result"


def main() -> None:
    """Runs the command given in the arguments and ends the process."""
    die_with_parent()
    lower_limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
    receive_keys(sys.stdin)
    what, folder, attempt, *more = sys.argv[1:]
    run, settings = RunDir(Path(folder)), Settings.load()
    agent = find_agent(run.spec.agent, settings.root)
    if what == "summary":
        sys.stdout.write(summarise_transcript(run, agent, settings, int(attempt)).model_dump_json())
    else:
        watch(run, agent, int(attempt), supervisor=int(more[0]), since_ns=int(more[1]))
    sys.stdout.flush()
    os._exit(0)  # without waiting for a thread that hangs in a read


def watch(run: RunDir, agent: Agent, attempt: int, supervisor: int, since_ns: int) -> None:
    """Records the attempt until stdin closes.

    Args:
        supervisor: Process id of the agent's supervisor.
        since_ns: When the attempt was started, in Unix nanoseconds.
    """
    recorder = Recorder(run, agent, supervisor, attempt, since_ns)
    listener = AnswerListener(transcript_path(run, agent, attempt) if agent.messages else None)

    def listen_for_answer() -> None:
        if listener.has_heard_an_answer():
            sys.stdout.buffer.write(ANSWERED + b"\n")
            sys.stdout.flush()

    log = pipeline_log(run)
    with (
        Background("the recorder", recorder.look, lambda: POLL_INTERVAL_S, log),
        Background("listening to the agent", listen_for_answer, lambda: POLL_INTERVAL_S, log),
    ):
        sys.stdin.read()
    recorder.close()


if __name__ == "__main__":
    main()
