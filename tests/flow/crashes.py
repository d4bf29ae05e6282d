"""Kills one part of a running benchmark run (kill -9) at a random moment, resumes the run and checks the result.

python -m tests.flow.crashes --rounds 10         # every victim ten times; prints a table
python -m tests.flow.crashes --rounds 10 --victims service --copying 2e9     # in the middle of a copy of 2 GB
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted, Graded, SubmissionAccepted, SubmissionReceived
from a2rl.run.records import ReportRecord
from tests.flow.checkout import EVAL_ITEMS, Checkout
from tests.mock_llm_process import driver_process

VICTIMS = ("flow", "service", "worker", "agent", "recorder", "relay", "prefect")
MODULES = {
    "worker": "a2rl.grading.worker",
    "recorder": "a2rl.execution.observer watch",
    "relay": "a2rl.llm.relay.app",
    "prefect": "flows.server",
}
"""Parts known by the module that they run."""
SUBMISSIONS = 5
WAIT_S = 900  # on a busy machine, two copies of 2 GB take minutes
KILL_WITHIN_S = 5.0
SCENARIO = """
turns: [{say: Done.}]
asides: [{asked: what now, say: submit}]
"""
COPY_S = 1.0
"""After the receipt of a submission of gigabytes its copy is under way for longer than this."""


class Round(NamedTuple):
    """The outcome of one killed run."""

    victim: str
    killed_after_s: float
    accepted: int
    graded: int
    attempts: int
    problem: str
    """Empty: nothing lost, nothing twice, the run is whole."""


def crash_round(
    checkout: Checkout,
    task: str,
    victim: str,
    rng: random.Random,
    submissions: int = SUBMISSIONS,
    copying: bool = False,
) -> Round:
    """Runs once with one kill. `victim` may name several parts, as in "service+worker"; they are killed in turn.

    Args:
        copying: kill while a submission is copied.
    """
    before = {run.id for run in RunDir.all(checkout.root / "runs")}
    with ExitStack() as stack:
        agent = ["--agent", str(checkout.submitter(submissions))]
        if "relay" in victim:  # only agents with an LLM have one
            scenario = checkout.root / "scenario.yaml"
            scenario.write_text(SCENARIO)
            url = stack.enter_context(driver_process(str(scenario), checkout.root / "served.jsonl"))
            agent = ["--agent", checkout.talker(submissions), "--base-url", url]
        flow = checkout.start("run", "--task", task, *agent, "--budget", "10m" if copying else "3m")
        stack.callback(flow.kill)
        run = _wait_for_agent(checkout, before, flow.pid)
        known = set[int]()
        for part in victim.split("+"):
            moment = _wait_for_copy(run, rng) if copying else rng.uniform(0.0, KILL_WITHIN_S)
            time.sleep(moment)
            known |= {event.submission_id for event in run.ledger.events(SubmissionAccepted)}
            _kill(part, flow.pid, run)
        flow.communicate(timeout=WAIT_S)
        if run.read("report", ReportRecord) is None:
            done = checkout.run("resume", run.id)
            if done.returncode != 0:
                return _round(run, victim, moment, submissions, f"resume failed: {done.stderr[-300:]}")
        problem = "; ".join(checkout.problems(run.id))
        lost = known - {event.submission_id for event in run.ledger.events(SubmissionAccepted)}
        return _round(run, victim, moment, submissions, problem or (f"lost {lost}" if lost else ""))


def _round(run: RunDir, victim: str, moment: float, submissions: int, problem: str) -> Round:
    accepted = {event.weights_digest for event in run.ledger.events(SubmissionAccepted)}
    graded = Counter(event.weights_digest for event in run.ledger.events(Graded))
    if not problem and (set(graded) != accepted or set(graded.values()) - {1}):
        problem = f"accepted {len(accepted)} distinct checkpoints, graded {dict(graded)}"
    if not problem and "agent" not in victim and len(accepted) != submissions:
        problem = f"the agent could submit {len(accepted)} of its {submissions} checkpoints only"
    if not problem and (left := _leftovers(run)):
        problem = f"processes left behind: {left}"
    return Round(victim, moment, len(accepted), sum(graded.values()), len(run.ledger.events(AgentStarted)), problem)


def _wait_for_agent(checkout: Checkout, before: set[str], flow: int) -> RunDir:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for run in RunDir.all(checkout.root / "runs"):
            if run.id not in before and run.ledger.events(AgentStarted):
                return run
        if not psutil.pid_exists(flow):
            break
        time.sleep(0.05)
    raise AssertionError("the agent was not started")


def _wait_for_copy(run: RunDir, rng: random.Random) -> float:
    """Waits until a submission has been received but not accepted; returns how much later to kill."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if len(run.ledger.events(SubmissionReceived)) > len(run.ledger.events(SubmissionAccepted)):
            return rng.uniform(0.0, COPY_S)
        time.sleep(0.02)
    raise AssertionError("nothing was submitted")


def _kill(victim: str, flow: int, run: RunDir) -> None:
    """Kills the processes of the victim with SIGKILL. A run that has already ended is not affected."""
    try:
        below = psutil.Process(flow).children(recursive=True)
        parts = [each for each in below if _is(victim, each, run)]
        for process in [psutil.Process(flow)] if victim == "flow" else parts:
            process.kill()
    except psutil.NoSuchProcess:
        return


def _is(victim: str, process: psutil.Process, run: RunDir) -> bool:
    command = " ".join(process.cmdline())
    if victim == "service":
        return "-m a2rl.grading.app " in command and str(run.root) in command
    if victim in MODULES:
        return MODULES[victim] in command
    return (
        ("submitter" in command or "talker" in command)
        and "a2rl.sandbox.supervisor" not in command
        and "a2rl run" not in command.replace("-m ", "")
    )


def _leftovers(run: RunDir) -> list[str]:
    """Returns processes that still belong to the run."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command = " ".join(process.info["cmdline"] or ())
        if str(run.root) in command or (process.info["cwd"] or "").startswith(str(run.workspace)):
            found.append(command[:120])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--victims", nargs="+", default=VICTIMS, choices=VICTIMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--copying", type=float, default=0, metavar="BYTES", help="kill while so large a one is copied")
    arguments = parser.parse_args()
    copying = int(arguments.copying)
    rng, bad = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        items, submissions = (4, 2) if copying else (EVAL_ITEMS, SUBMISSIONS)
        checkout = Checkout(Path(scratch) / "a2rl", {"steady": ""}, items, copying)
        for number in range(arguments.rounds):
            for victim in arguments.victims:
                result = crash_round(checkout, "steady", victim, rng, submissions, copying > 0)
                for run in RunDir.all(checkout.root / "runs") if copying else ():
                    shutil.rmtree(run.root)
                bad += bool(result.problem)
                sys.stdout.write(
                    f"{number + 1:2} {victim:8} killed after {result.killed_after_s:4.1f} s: "
                    f"accepted {result.accepted}, graded {result.graded}, attempts {result.attempts}  "
                    f"{result.problem or 'whole'}\n"
                )
                sys.stdout.flush()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
