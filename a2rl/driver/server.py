"""Starts the driver: for a user at a port, or for another process on a socket of its own."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2rl.driver.scenario import load_scenario
from a2rl.process import module_command

HOST = "127.0.0.1"


def serve(scenario: str, port: int, log: Path | None) -> None:
    """Serves until Ctrl-C, and says at which address."""
    import uvicorn

    from a2rl.cli.console import out
    from a2rl.driver.app import create_app

    app = create_app(load_scenario(scenario), log)
    with socket.create_server((HOST, port)) as listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        out.print(
            f"playing {scenario} at {url}\n"
            f"  ANTHROPIC_BASE_URL={url}\n"
            f"  OPENAI_BASE_URL={url}/v1\n"
            f"  GOOGLE_GEMINI_BASE_URL={url}",
            soft_wrap=True,
            markup=False,
        )
        uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).run(sockets=[listener])


@contextmanager
def driver_process(scenario: str, log: Path) -> Iterator[str]:
    """The driver in a process of its own, ended with the context.

    Yields: its address, such as `http://127.0.0.1:40123`.
    """
    import httpx

    load_scenario(scenario)  # what is wrong with it is better said here
    with socket.create_server((HOST, 0)) as listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        process = subprocess.Popen(
            module_command("a2rl.driver", str(listener.fileno()), scenario, str(log)),
            stdin=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )
    try:
        httpx.get(f"{url}/health", timeout=60, trust_env=False).raise_for_status()
        yield url
    finally:
        process.kill()
        process.wait()
