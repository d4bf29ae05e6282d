"""Runs the Prefect flow from the command line: in this process, with an embedded server, quietly.

Where the user has a server of their own (PREFECT_API_URL is set), it is used and nothing of its settings is touched.
"""

import os
from typing import Any

from a2rl.cli.console import err
from a2rl.cli.results import Follower
from a2rl.settings import Settings


def run_flow(parameters: dict[str, Any], run_ids: list[str], settings: Settings) -> None:
    """Runs the flow `a2rl` and shows what happens in its runs.

    Raises:
        A2rlError: as the flow does.
    """
    _configure_prefect(settings)
    with Follower(settings.runs, err, set(run_ids)), err.status("starting Prefect") as status:
        from flows.pipeline import a2rl

        status.stop()
        a2rl(**parameters)


def _configure_prefect(settings: Settings) -> None:
    """Prefect reads its settings from the environment when it is imported."""
    if settings.environ.get("PREFECT_API_URL"):
        return
    ours = {
        "PREFECT_HOME": str(settings.root / ".prefect"),
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    for name, value in ours.items():
        os.environ.setdefault(name, value)
