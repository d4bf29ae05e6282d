"""The program that an attack runs in: `python inside.py ATTACK FACTS OUTCOME`, with the standard library alone.

Calls the attack's `attack(scene)` and writes its outcome: {"skipped": reason}, {"stopped_by": error} or {"got": what}.
"""
# ruff: noqa: PTH105, PTH123

import ctypes
import json
import os
import runpy
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

MAX_CHARACTERS = 500
RETRY_INTERVAL_S = 0.2
MAX_VARIANTS = 1000
LIBC = ctypes.CDLL(None, use_errno=True)


class SkippedError(Exception):
    """This machine does not have what the attack needs."""


class Scene:
    """What an attack is given: the paths, ports and process ids of its targets as attributes, and common steps."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.__dict__.update(facts)

    def skip(self, reason: str) -> NoReturn:
        """Ends the attack, because it cannot be tried on this machine."""
        raise SkippedError(reason)

    # Steps of attacks on the system.

    def syscall(self, number: int, *arguments: Any) -> int:
        """Makes a system call by its number.

        Raises:
            OSError: the call failed.
        """
        result: int = LIBC.syscall(number, *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    def try_each(self, ways: Mapping[str, Callable[[], object]]) -> list[str]:
        """Tries each way, and returns the names of those that raise no error.

        Raises:
            PermissionError: none of them worked.
        """
        worked, reasons = [], set()
        for name, way in ways.items():
            try:
                way()
            except (OSError, ValueError) as error:
                reasons.add(getattr(error, "strerror", None) or str(error))
            else:
                worked.append(name)
        return self.unless_stopped(worked, len(ways), reasons)

    def try_to_change(
        self, targets: Iterable[object], ways: Iterable[Callable[[str], object]], state: Callable[[str], object]
    ) -> list[str]:
        """Tries each way on each target, and returns those after which the target's state has changed.

        A target that does not exist inside has no state to change, but the ways are tried all the same.

        Raises:
            PermissionError: all states are as before.
        """
        ways = list(ways)

        def state_of(target: str) -> object:
            try:
                return state(target)
            except OSError:
                return None

        worked, reasons, tried = [], set(), 0
        for target in map(str, targets):
            for way in ways:
                before = state_of(target)
                tried += 1
                try:
                    way(target)
                except OSError as error:
                    reasons.add(error.strerror or str(error))
                if state_of(target) != before:
                    worked.append(f"{way.__name__}: {target}")
        return self.unless_stopped(worked, tried, reasons)

    def unless_stopped(self, worked: list[str], tried: int, reasons: Iterable[str]) -> list[str]:
        """Returns the ways that worked.

        Raises:
            PermissionError: none worked.
        """
        if not worked:
            raise PermissionError(f"{tried} ways tried, all stopped: {sorted(set(reasons))}")
        return worked

    # Steps of attacks at level "run", with the grading service.

    def request(
        self, path: str, body: object = None, *, method: str | None = None, timeout_s: float = 60, server: str = ""
    ) -> tuple[int, Any]:
        """Sends a request to the grading service.

        Args:
            body: bytes are sent as they are, anything else as JSON; without a body it is a GET.
            server: URL of another server.

        Returns:
            The HTTP status and the JSON of the answer ({} if it is not JSON), or 0 and the error if there is no answer.
        """
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            (server or os.environ["GRADING_SERVER_URL"]) + path, content, {"Content-Type": "application/json"},
            method=method,
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, _parsed(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _parsed(error.read())
        except OSError as error:
            return 0, str(error)

    def submit(self, folder: object, timeout_s: float = 60) -> tuple[int, Any]:
        """Submits a checkpoint; returns what `request` does."""
        return self.request("/submit", {"model_path": str(folder)}, timeout_s=timeout_s)

    def copy_model(self, folder: object, variant: int = 0) -> Path:
        """Copies the base model; the weights of each variant differ from the base model's in one bit."""
        copy = Path(str(folder))
        shutil.copytree(os.environ["MODEL_PATH"], copy, copy_function=shutil.copyfile)
        copy.chmod(0o755)  # the base model's own folder is read-only
        if variant:
            weights = copy / "model.safetensors"
            content = bytearray(weights.read_bytes())
            content[-4 * variant] ^= 1
            weights.write_bytes(content)
        return copy

    def submit_variants(self) -> None:
        """Submits one variant of the base model after the other, until the service refuses one."""
        for variant in range(1, MAX_VARIANTS):
            status, _ = self.submit(self.copy_model(f"output/v{variant}", variant))
            if status != 200:
                return

    def submit_until_graded(self, seconds: float) -> str:
        """Submits the base model again until it is graded; returns "", or the last error when time is up."""
        folder = self.copy_model("output/honest")
        until, error = time.monotonic() + seconds, "no answer"
        while time.monotonic() < until:
            status, answer = self.submit(folder, timeout_s=20)
            if status == 200:
                return ""
            error = f"{status} {answer}"
            time.sleep(RETRY_INTERVAL_S)
        return error


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return {}


def outcome_of(path: str, facts: dict[str, Any]) -> dict[str, str]:
    """Runs the attack in a file."""
    try:
        got = runpy.run_path(path)["attack"](Scene(facts))
    except SkippedError as reason:
        return {"skipped": str(reason)}
    except BaseException as error:  # noqa: BLE001 - any exception, SystemExit included, means that it was stopped
        return {"stopped_by": f"{type(error).__name__}: {error}"[:MAX_CHARACTERS]}
    return {"got": str(got)[:MAX_CHARACTERS]}


def main(attack: str, facts: str, outcome: str) -> None:
    """Runs the attack, and writes its outcome into a file."""
    with open(facts, encoding="utf-8") as file:
        found = outcome_of(attack, json.load(file))
    with open(outcome + ".part", "w", encoding="utf-8") as file:
        json.dump(found, file)
    os.replace(outcome + ".part", outcome)


if __name__ == "__main__":
    main(*sys.argv[1:])
