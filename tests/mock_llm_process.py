"""The scripted LLM in a separate process: `python -m tests.mock_llm_process DESCRIPTOR SCENARIO LOG`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2rl.core.serving import serve_for_parent
from a2rl.mock_llm.app import Served, create_app
from a2rl.mock_llm.scenario import load_scenario
from tests.http_server import served_by


@contextmanager
def driver_process(scenario: str, log: Path) -> Iterator[str]:
    """Runs the scripted LLM within the context.

    Yields:
        Its address, such as `http://127.0.0.1:40123`.
    """
    load_scenario(scenario)  # an error in it is easier to read here
    with served_by("tests.mock_llm_process", scenario, str(log)) as (url, _):
        yield url


def read_log(path: Path) -> list[Served]:
    """Returns the log of all answers so far."""
    return [Served.model_validate_json(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    serve_for_parent(create_app(load_scenario(sys.argv[2]), Path(sys.argv[3])), int(sys.argv[1]), lifespan="off")
