"""`python -m tests.redteam`: attacks the pipeline as root and as an ordinary user, in each sandbox.

Exit code 0: no attack succeeded; 1: at least one did (not counting `--sandbox none`, where attacks are expected to).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from a2rl.core.errors import A2rlError
from a2rl.core.printable import printable
from tests.redteam import harmless, ordinary_user
from tests.redteam.attack import Attack, Outcome, find_attacks
from tests.redteam.ordinary_user import REPOSITORY

SANDBOXES = ("landlock", "bwrap", "none")
EXAMPLES = """examples:
  a2rl redteam                                     all attacks, in every sandbox of this machine
  a2rl redteam --only fork_and_exit_chains --only escape_sequences --sandbox landlock
  a2rl redteam --only path/to/my_attack.py         your own attack; see tests/redteam/__init__.py
  a2rl redteam --sandbox none                      which attacks succeed without a sandbox
"""


def main() -> None:
    """Runs the attacks that the command line names, and exits."""
    arguments = _arguments()
    try:
        attacks = [attack for attack in find_attacks(tuple(arguments.only)) if arguments.level in (None, attack.level)]
    except A2rlError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    outcomes: list[Outcome] = []

    def run_session(user: str, sandbox: str) -> None:
        for outcome in in_session(user, sandbox, attacks):
            outcomes.append(outcome)
            _show(outcome)

    pairs = product(arguments.user or available_users(), arguments.sandbox or _sandboxes())
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for session in [pool.submit(run_session, user, sandbox) for user, sandbox in pairs]:
            session.result()
    _close(outcomes, arguments.json)
    broken = [outcome for outcome in outcomes if outcome.succeeded and outcome.sandbox != "none"]
    sys.exit(1 if broken else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="a2rl redteam", description="Attack the pipeline as hostile agents would.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", action="append", default=[], help="name or file of an attack; may be repeated")
    parser.add_argument("--level", choices=("sandbox", "run"), help="attacks on the sandbox alone, or on whole runs")
    parser.add_argument(
        "--sandbox", action="append", choices=SANDBOXES, help="may be repeated; default: those available"
    )
    parser.add_argument("--user", action="append", choices=("root", "user"), help="default: both if run as root")
    parser.add_argument("--jobs", type=int, default=1, help="parallel sessions; there is one per user and sandbox")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    return parser.parse_args()


def available_users() -> list[str]:
    """Returns the kinds of users as which this machine can run attacks."""
    if os.geteuid() != 0:
        return ["user"]
    return ["root", "user"] if ordinary_user.is_available() else ["root"]


def _sandboxes() -> list[str]:
    return ["landlock", "bwrap"] if shutil.which("bwrap") else ["landlock"]


def in_session(user: str, sandbox: str, attacks: list[Attack]) -> Iterator[Outcome]:
    """Runs the attacks in a separate process, as that user; as root without a sandbox, where they can do no harm."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        command = [sys.executable, "-m", "tests.redteam.session", sandbox, *(str(each.path) for each in attacks)]
        if user == "user" and os.geteuid() == 0:
            command = ordinary_user.as_nobody(command)
        elif sandbox == "none" and os.geteuid() == 0:
            command = harmless.contained(command)
        environment = {**os.environ, "HOME": folder, "TMPDIR": folder, "A2RL_ROOT": "", "PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment, text=True
        ) as session:
            assert session.stdout is not None
            left = {attack.name: attack for attack in attacks}
            for line in session.stdout:
                if line.startswith("{"):
                    outcome = Outcome(**json.loads(line))
                    left.pop(outcome.name, None)
                    yield outcome
    for attack in left.values():  # the attack killed the session's process
        achieved = f"the session ended with exit code {session.returncode} before this attack was judged"
        yield Outcome(attack.name, attack.level, user, sandbox, True, "", True, achieved)


def _show(outcome: Outcome) -> None:
    word = "SUCCEEDED" if outcome.succeeded else ("stopped" if outcome.tried else "not tried")
    line = f"{outcome.user:5} {outcome.sandbox:9} {outcome.name:40} {word:10} {outcome.achieved or outcome.stopped_by}"
    sys.stdout.write(printable(line, 200) + "\n")
    sys.stdout.flush()


def _close(outcomes: list[Outcome], as_json: bool) -> None:
    tried = [outcome for outcome in outcomes if outcome.tried]
    succeeded = [outcome for outcome in tried if outcome.succeeded]
    names = len({outcome.name for outcome in tried})
    sys.stdout.write(f"\n{names} attacks, {len(tried)} attempts: {len(succeeded)} succeeded\n")
    if as_json:
        attempts = [outcome._asdict() for outcome in outcomes]
        sys.stdout.write(json.dumps({"tried": len(tried), "succeeded": len(succeeded), "attempts": attempts}) + "\n")


if __name__ == "__main__":
    main()
