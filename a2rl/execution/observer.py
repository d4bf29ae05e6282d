"""`python -P -m a2rl.execution.observer`: the process that reads the files that an agent writes.

    watch RUN ATTEMPT SUPERVISOR SINCE_NS    records the attempt until stdin closes; prints `answered`
    summary RUN ATTEMPT                      prints a summary of the attempt's transcript, as JSON

It is a separate process because the agent can make its files slow or harmful to read: the clock must not wait for
that, and the run must not fail. The process may be killed at any time.
"""

import os
import resource
import sys
from pathlib import Path

from a2rl.agent_systems.catalog import find_agent
from a2rl.agent_systems.definition import Agent
from a2rl.core.background import Background
from a2rl.core.settings import Settings
from a2rl.execution.messages import AnswerListener
from a2rl.execution.transcript_summary import summarise_transcript
from a2rl.linux.process_tree import die_with_parent
from a2rl.llm.keys import receive_keys
from a2rl.recording.recorder import Recorder
from a2rl.recording.trajectory import transcript_path
from a2rl.run.directory import RunDir, pipeline_log

POLL_INTERVAL_S = 0.5
MAX_MEMORY_BYTES = 6 << 30
"""The limit of the address space. A transcript that needs more is not read."""
ANSWERED = "answered"


def main() -> None:
    """Runs the command given in the arguments and ends the process."""
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
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
        run: The run.
        agent: The agent's definition.
        attempt: The number of the attempt.
        supervisor: Process id of the agent's supervisor.
        since_ns: When the attempt was started, in Unix nanoseconds.
    """
    recorder = Recorder(run, agent, supervisor, attempt, since_ns)
    listener = AnswerListener(transcript_path(run, agent, attempt) if agent.messages else None)

    def listen_for_answer() -> None:
        if listener.has_heard_an_answer():
            sys.stdout.write(f"{ANSWERED}\n")
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
