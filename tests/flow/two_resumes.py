"""Two processes resume one run at the same time, again and again: one must win, the other must refuse."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.flow.checkout import Checkout
from tests.flow.machines import Machines, kill_machine, wait_for

REFUSED = 2
"""The exit status of a command that was refused."""
TAKE_AND_APPEND = """
import sys, time
from pathlib import Path
from a2rl.cluster.holding import held
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
settings = Settings.load(Path(sys.argv[1]))
run = RunDir(settings.runs / sys.argv[2])
import psycopg, s3fs                 # loaded before the race begins
print("ready", flush=True)
while name := sys.stdin.readline().strip():
    began = time.monotonic()
    try:
        with held(run, settings):
            run.ledger.append(RunInterrupted(stage=name))
            print("won", time.monotonic() - began, flush=True)
            sys.stdin.readline()
    except UsageError:
        print("refused", time.monotonic() - began, flush=True)
        sys.stdin.readline()
    print("over", flush=True)
"""


class Racer:
    """A process that is ready to take a run."""

    def __init__(self, checkout: Checkout, run_id: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", TAKE_AND_APPEND, str(checkout.root), run_id],
            env=checkout.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.hear() == "ready"

    def tell(self, text: str = "") -> None:
        """Gives the process a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Returns the next line of the process."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def _racers(machines: Machines, run_id: str) -> Iterator[tuple[Racer, Racer, Racer]]:
    """Starts two racers in the first checkout, and one in the second."""
    first, second, elsewhere = (Racer(place, run_id) for place in (machines.one, machines.one, machines.two))
    try:
        yield first, second, elsewhere
    finally:
        for each in (first, second, elsewhere):
            each.end()


def race(machines: Machines, run_id: str, rounds: int) -> list[float]:
    """Lets two of three processes take the run in each round, and checks that one does.

    Returns:
        How long each refusal took, in seconds.
    """
    before, took_s = machines.row(run_id), list[float]()
    with _racers(machines, run_id) as (first, second, elsewhere):
        for number in range(rounds):
            pair = (first, second) if number % 2 else (first, elsewhere)
            for side, racer in enumerate(pair):
                racer.tell(f"round {number} {side}")
            results = dict(racer.hear().split() for racer in pair)
            assert set(results) == {"won", "refused"}, results
            took_s.append(float(results["refused"]))
            for racer in pair:
                racer.tell()
                assert racer.hear() == "over"
    row = machines.row(run_id)
    assert row.epoch == before.epoch + rounds
    assert row.seq >= before.seq + rounds
    return took_s


def race_of_commands(machines: Machines, run_id: str, on_one_host: bool) -> None:
    """Starts two `a2rl resume` at the same time, waits until one was refused, and kills the other one."""
    places = (machines.one, machines.one if on_one_host else machines.two)
    before, began = machines.row(run_id), time.monotonic()
    commands = [place.start("resume", run_id) for place in places]
    try:
        while all(command.poll() is None for command in commands):
            assert time.monotonic() - began < 240
            time.sleep(0.02)
        [loser] = [command for command in commands if command.poll() is not None]
        said = loser.communicate()[1]
        assert loser.returncode == REFUSED, said
        assert "is in use by" in said, said
        wait_for("the claim of the winner", lambda: machines.row(run_id).live, 120)
        assert machines.row(run_id).epoch == before.epoch + 1
    finally:
        for place in set(places):
            kill_machine(place)
        for command in commands:
            command.wait()
