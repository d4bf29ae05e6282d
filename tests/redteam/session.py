"""All attacks as one user in one sandbox; a line of JSON for each as it ends.

python -m tests.redteam.session landlock ATTACK_FILE ...
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.redteam.arena import Arena, RunArena, SandboxArena
from tests.redteam.attack import Attack, Outcome


def play(attacks: Iterable[Attack], sandbox: str) -> Iterator[Outcome]:
    """Those of each level in one arena."""
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
    sandbox, *files = sys.argv[1:]
    for outcome in play([Attack.load(Path(file)) for file in files], sandbox):
        sys.stdout.write(json.dumps(outcome._asdict()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
