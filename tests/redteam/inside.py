"""The program that an attack runs in: `python inside.py ATTACK FACTS OUTCOME`; the standard library alone.

Calls the attack's `attack(scene)` and writes what came of it: {"skipped": why}, {"stopped_by": what} or {"got": it}.
"""
# ruff: noqa: PTH105, PTH123

import json
import os
import runpy
import sys
from typing import Any, NoReturn

MAX_CHARACTERS = 500


class Skipped(Exception):
    """This machine does not have what the attack takes."""


class Scene:
    """Where the things are that the attack is after."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.__dict__.update(facts)

    def skip(self, why: str) -> NoReturn:
        raise Skipped(why)

    def submit(self, folder: object) -> tuple[int, dict[str, Any]]:
        """Hands in a checkpoint, as an agent does at level "run": the status, and what the grader answers."""
        import urllib.error
        import urllib.request

        request = urllib.request.Request(
            f"{os.environ['GRADING_SERVER_URL']}/submit", json.dumps({"model_path": str(folder)}).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, {}


def outcome_of(path: str, facts: dict[str, Any]) -> dict[str, str]:
    try:
        got = runpy.run_path(path)["attack"](Scene(facts))
    except Skipped as why:
        return {"skipped": str(why)}
    except BaseException as error:  # noqa: BLE001 - whatever it is, the attack was stopped by it
        return {"stopped_by": f"{type(error).__name__}: {error}"[:MAX_CHARACTERS]}
    return {"got": str(got)[:MAX_CHARACTERS]}


def main(attack: str, facts: str, outcome: str) -> None:
    with open(facts, encoding="utf-8") as file:
        found = outcome_of(attack, json.load(file))
    with open(outcome + ".part", "w", encoding="utf-8") as file:
        json.dump(found, file)
    os.replace(outcome + ".part", outcome)


if __name__ == "__main__":
    main(*sys.argv[1:])
