"""The command line: where everything is put together. It alone may import `flows` and `stages`; nothing imports it."""

import sys

from a2rl.errors import A2rlError, Interrupted, UsageError
from a2rl.settings import Settings


def main() -> None:
    """Runs a command; an error is one line that says how to mend it, never a stack trace."""
    from a2rl.cli.commands import app

    try:
        _find_application()
        app()
    except A2rlError as error:
        from a2rl.cli.console import print_error

        print_error(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output (head, less) has gone


def _find_application() -> None:
    """`flows`, `stages` and `tasks` are not installed: they are found in the checkout that this is run for."""
    try:
        sys.path.insert(0, str(Settings.load().root))
    except UsageError:
        return  # the command says so itself, if it needs a checkout at all
