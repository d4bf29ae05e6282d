"""Runs attacks as one user in one sandbox, and prints a line of JSON for each when it ends.

python -m tests.redteam.session landlock ATTACK_FILE ...
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from a2rl.sandbox.isolation import SandboxKind
from tests.redteam.arena import Arena, RunArena, SandboxArena
from tests.redteam.attack import Attack, Outcome


def play(attacks: Iterable[Attack], sandbox: SandboxKind) -> Iterator[Outcome]:
    """Runs the attacks of each level in one arena."""
    attacks = list(attacks)
    for level, arena in (("sandbox", SandboxArena), ("run", RunArena)):
        chosen = [attack for attack in attacks if attack.level == level]
        if chosen:
            with arena(sandbox) as open_arena:
                yield from _play_in(open_arena, chosen)


def _play_in(arena: Arena, attacks: Iterable[Attack]) -> Iterator[Outcome]:
    for attack in attacks:
        yield arena.play(attack)


def main() -> None:
    """Runs the attacks that the command line names."""
    sandbox, *files = sys.argv[1:]
    for outcome in play([Attack.load(Path(file)) for file in files], cast(SandboxKind, sandbox)):
        sys.stdout.write(json.dumps(outcome._asdict()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
