"""Real services for the slow tests: Postgres, Redis, an S3 server and Prefect, as processes of this machine."""

import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.run_maker import REPOSITORY

SCRIPT = str(REPOSITORY / "scripts" / "services.sh")


class Services:
    """Services in a folder of their own, on ports of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self._environ = environ | {"A2RL_SERVICES": str(folder), "A2RL_SERVICES_PORT": str(_free_ports())}

    def start(self, *names: str) -> None:
        """Starts services, also again after they were stopped or killed."""
        self._call("start", *names)

    def stop(self, *names: str) -> None:
        """Stops services."""
        self._call("stop", *names)

    def kill(self, name: str) -> None:
        """Kills a service with all of its processes (kill -9)."""
        os.killpg(self.pid(name), signal.SIGKILL)

    def pid(self, name: str) -> int:
        """The process that a service was started as."""
        return int((self._folder / "pid" / name).read_text())

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of their clients."""
        return dict(re.findall(r"(\w+)=(\S+)", self._call("env")))

    def _call(self, *arguments: str) -> str:
        done = subprocess.run([SCRIPT, *arguments], env=self._environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _free_ports() -> int:
    """Returns the first of five ports that nobody uses."""
    for first in range(21000 + os.getpid() % 500 * 10, 32000, 10):
        try:
            for port in range(first, first + 5):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no five free ports")


@contextmanager
def running(*names: str) -> Iterator[Services]:
    """Runs services within the context; a test that needs what is not installed is skipped.

    Their folder is none of pytest's: Postgres runs as another user if this one is root, and each start of pytest closes
    the folder of all its tests to others.
    """
    have = subprocess.run([SCRIPT, "env"], capture_output=True, check=False).returncode == 0
    missing = [name for name in ("redis-server",) if "redis" in names and not _has(name)]
    missing += (
        ["postgres"] if "postgres" in names and not (_has("postgres") or Path("/usr/lib/postgresql").is_dir()) else []
    )
    missing += [] if find_spec("psycopg") else ["what `make setup-scale` installs"]
    if missing or not have:
        pytest.skip(f"{', '.join(missing)} is not installed")
    with tempfile.TemporaryDirectory(prefix="a2rl-services-") as folder:
        Path(folder).chmod(0o755)
        services = Services(Path(folder))
        try:
            services.start(*names)
            yield services
        finally:
            services.stop()


def _has(program: str) -> bool:
    return any(Path(folder, program).exists() for folder in os.environ["PATH"].split(os.pathsep))
