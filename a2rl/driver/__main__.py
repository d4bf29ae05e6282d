"""The driver as a process that belongs to another one: `python -m a2rl.driver DESCRIPTOR SCENARIO LOG`."""

import sys
from pathlib import Path

from a2rl.driver.app import create_app
from a2rl.driver.scenario import load_scenario
from a2rl.serving import serve_for_parent

if __name__ == "__main__":
    serve_for_parent(create_app(load_scenario(sys.argv[2]), Path(sys.argv[3])), int(sys.argv[1]), lifespan="off")
