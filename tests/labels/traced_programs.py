"""The labelled programs in `running/`, which really train: each is run under the tracer, on a small model.

    python -m tests.labels.traced_programs OUTPUT PROGRAM ...      # prints `PROGRAM PID STATUS` for each

The libraries are imported once: each program is a child of one process.
"""

import json
import os
import runpy
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import yaml

from a2rl.labels.code_walk import Program, spots_in
from a2rl.labels.records import Chain
from a2rl.labels.run_labels import chain_of, traced_phase
from a2rl.labels.traces import read_trace
from a2rl.recording import tracer
from tests.small_model import build_base_model

RUNNING = Path(__file__).parent / "running"
REPOSITORY = Path(__file__).resolve().parents[2]


class Labelled(NamedTuple):
    """A program and its route, such as `SFT > GRPO`."""

    name: str
    route: str
    files: dict[str, str]


class Ran(NamedTuple):
    """A program that was run, with what it noted."""

    program: Labelled
    chain: Chain


def programs() -> list[Labelled]:
    """Returns the programs with their routes."""
    labels: dict[str, str] = yaml.safe_load((RUNNING / "labels.yaml").read_text(encoding="utf-8"))
    return [
        Labelled(name, route, {f"{name}.py": (RUNNING / f"{name}.py").read_text(encoding="utf-8")})
        for name, route in labels.items()
    ]


def traced_environment(folder: Path) -> dict[str, str]:
    """Returns an environment in which Python programs are traced, as agents have it, into `trace.jsonl`."""
    (folder / "tracer").mkdir(exist_ok=True)
    shutil.copyfile(tracer.__file__, folder / "tracer" / "sitecustomize.py")
    path = os.pathsep.join((str(folder / "tracer"), str(REPOSITORY)))
    return {**os.environ, "PYTHONPATH": path, tracer.VARIABLE: str(folder / "trace.jsonl"), "HF_HUB_OFFLINE": "1"}


def run_programs(folder: Path) -> list[Ran]:
    """Runs all programs and labels them by what they noted."""
    environment = traced_environment(folder) | {"MODEL_PATH": str(build_base_model(folder / "model"))}
    known = {each.name: each for each in programs()}
    command = [sys.executable, "-m", "tests.labels.traced_programs", str(folder)]
    command += [str(RUNNING / f"{name}.py") for name in known]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    ends = {row[0]: (int(row[1]), int(row[2])) for row in rows if len(row) == 3 and row[0] in known}
    failed = [name for name in known if ends.get(name, (0, 1))[1]]
    assert not failed, f"{failed}: {done.stderr[-3000:]}"
    lines = (folder / "trace.jsonl").read_text().splitlines()
    found = []
    for name, program in known.items():
        own = folder / f"{name}.jsonl"
        own.write_text(
            "".join(f"{line}\n" for line in lines if json.loads(line)["process"].startswith(f"{ends[name][0]}-"))
        )
        found.append(Ran(program, traced_chain(own, program.files)))
    return found


def traced_chain(path: Path, files: dict[str, str]) -> Chain:
    """Returns the route that a trace shows together with the code."""
    program = Program(files)
    code, works = spots_in(program), read_trace(path).works
    found = (traced_phase(work, code, program.file(work.place.file), "", None) for work in works)
    return chain_of(phase for phase in found if phase is not None)


def main() -> None:
    """Runs programs one after the other."""
    output, given = Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]]
    import torch
    import transformers  # noqa: F401 - all programs share it
    import trl  # noqa: F401

    for program in given:
        child = os.fork()
        if not child:
            torch.set_num_threads(1)
            os.environ["OUTPUT_DIR"] = str(output / program.stem)
            with redirect_stdout(StringIO()):
                runpy.run_path(str(program), run_name="__main__")
            return
        sys.stdout.write(f"{program.stem} {child} {os.waitpid(child, 0)[1]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
