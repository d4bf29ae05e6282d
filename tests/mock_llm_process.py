"""The scripted LLM in a separate process: `python -m tests.mock_llm_process DESCRIPTOR SCENARIO LOG`."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from a2rl.core.serving import serve_for_parent
from a2rl.mock_llm.app import HOST, Served, create_app
from a2rl.mock_llm.scenario import load_scenario


@contextmanager
def driver_process(scenario: str, log: Path) -> Iterator[str]:
    """Runs the scripted LLM within the context.

    Yields:
        Its address, such as `http://127.0.0.1:40123`.
    """
    load_scenario(scenario)  # an error in it is easier to read here
    with socket.create_server((HOST, 0)) as listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.mock_llm_process", str(listener.fileno()), scenario, str(log)],
            stdin=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
            cwd=Path(__file__).resolve().parents[1],  # so that `tests` can be imported
        )
    try:
        httpx.get(f"{url}/health", timeout=60, trust_env=False).raise_for_status()
        yield url
    finally:
        process.kill()
        process.wait()


def read_log(path: Path) -> list[Served]:
    """Returns the log of all answers so far."""
    return [Served.model_validate_json(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    serve_for_parent(create_app(load_scenario(sys.argv[2]), Path(sys.argv[3])), int(sys.argv[1]), lifespan="off")
