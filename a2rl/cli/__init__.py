"""The command line, the only part of a2rl that uses the application: the folders `flows`, `stages` and `tasks`."""

import os
import sys
from collections.abc import Sequence

from a2rl.core.errors import A2rlError, InterruptedByUserError, NotReadyError, UsageError
from a2rl.core.settings import Settings

APPLICATION = ("agents", "flows", "stages", "tasks")
"""Folders of a project that are not importable from the installed package."""


def main() -> None:
    """Runs a command. An error is printed as one line that says how to fix it, without a stack trace."""
    for name in ("stdout", "stderr"):  # a program that starts this one may have closed them
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the end
    from a2rl.cli.console import print_error

    try:
        from a2rl.cli.commands import app  # takes half a second, in which Ctrl-C may come

        _check_homes(sys.argv[1:])
        _use_project()
        app()
    except A2rlError as error:
        for problem in error.problems if isinstance(error, NotReadyError) else (str(error),):
            print_error(problem)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(InterruptedByUserError.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # the program that reads our output (such as head or less) has ended
    except OSError as error:
        from a2rl.core.files import machine_failure

        failure = machine_failure(f"use {str(error.filename)[:200]}" if error.filename else "go on", error)
        print_error(str(failure))
        sys.exit(failure.exit_code)


def _check_homes(arguments: Sequence[str]) -> None:
    """Checks that each ~NAME at the beginning of an argument, or of an option's value, is the home of a user.

    Raises:
        UsageError: There is no such user.
    """
    for argument in arguments:
        for path in (argument, argument.partition("=")[2]):
            home = path.split("/")[0]
            if home.startswith("~") and os.path.expanduser(home) == home:  # noqa: PTH111 - pathlib's raises an error
                raise UsageError(f"{path}: there is no user {home[1:]} here")


def _use_project() -> None:
    """Makes `flows`, `stages` and `tasks` of the project in use importable: see `Settings.load`.

    Without a project, only commands that need none work; the others say so.

    Raises:
        UsageError: The project lacks a folder.
    """
    try:
        settings = Settings.load()
    except UsageError:
        return
    settings.provide_home()
    root = settings.root
    missing = [name for name in APPLICATION if not (root / name).is_dir()]
    if missing:
        raise UsageError(f"{root} is not a whole project of a2rl: it has no folder {', '.join(missing)}")
    sys.path.insert(0, str(root))
