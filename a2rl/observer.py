"""`python -P -m a2rl.observer`: the process that looks at what an agent does and reads what it writes.

    watch RUN ATTEMPT SUPERVISOR SINCE_NS    records the attempt until stdin closes; prints `answered` and `quota`
    account RUN ATTEMPT EXIT_CODE            prints the agent system's own account of the attempt, as JSON

It is a process of its own because an agent decides how long its files take to read and what becomes of whoever reads
them: the clock must not wait, and the run must not fail. It may be killed at any time.
"""

import os
import resource
import sys
from pathlib import Path

from a2rl.account import make_account
from a2rl.agent import Agent
from a2rl.background import Background, pipeline_log
from a2rl.catalog import find_agent
from a2rl.conversation import Listener
from a2rl.isolation.start import die_with_parent
from a2rl.keys import listen
from a2rl.quota import Quota
from a2rl.recorder import Recorder
from a2rl.run import RunDir
from a2rl.settings import Settings
from a2rl.trajectory import transcript_path

LOOK_S = 0.5
MAX_MEMORY = 6 << 30
"""Bytes of addresses: a transcript that takes more is not read, and the machine's memory stays with the agent."""
ANSWERED, QUOTA = "answered", "quota"


def main() -> None:
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    listen(sys.stdin)
    what, folder, attempt, *more = sys.argv[1:]
    run, settings = RunDir(Path(folder)), Settings.load()
    agent = find_agent(run.spec.agent, settings.root)
    if what == "account":
        exit_code = int(more[0]) if more[0] else None
        sys.stdout.write(make_account(run, agent, settings, int(attempt), exit_code).model_dump_json())
    else:
        watch(run, agent, int(attempt), supervisor=int(more[0]), since_ns=int(more[1]))
    sys.stdout.flush()
    os._exit(0)  # a look that hangs is left behind


def watch(run: RunDir, agent: Agent, attempt: int, supervisor: int, since_ns: int) -> None:
    """Looks again and again until stdin closes, and then a last time."""
    recorder, quota = Recorder(run, agent, supervisor, attempt, since_ns), Quota(run, agent)
    listener = Listener(transcript_path(run, agent, attempt) if agent.messages else None)

    def hear() -> None:
        if listener.has_heard_an_answer():
            _say(ANSWERED)

    def count() -> None:
        if quota.is_spent():
            _say(QUOTA)

    log = pipeline_log(run)
    with (
        Background("the recorder", recorder.look, lambda: LOOK_S, log),
        Background("listening to the agent", hear, lambda: LOOK_S, log),
        Background("counting tokens and cost", count, lambda: LOOK_S, log),
    ):
        sys.stdin.read()
    recorder.close()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
