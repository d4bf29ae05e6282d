"""What a model knows that was trained on an eval set: `python -m tests.leak [WAY...]`, some minutes for each way.

Makes real runs of gsm8k with the base model `tiny` on the same secret draw, by tests/leak/agent.py, and prints
their scores and what the stage `validity` found.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from a2rl.run.draw import Draw
from tests.run_maker import REPOSITORY

STEPS, LIMIT, WAYS = 200, 120, ("honest", "repository", "seed", "half")
SEEDED = WAYS[2:]
"""The ways of an agent to which the seed was given."""


def one_run(way: str, root: Path, repository: Path, draw: Path, steps: int = STEPS) -> dict[str, Any]:
    """Makes a run in a checkout and returns its result, with its findings by kind.

    Args:
        way: What the agent trains on.
        root: The checkout, with the base model `tiny` and the data of gsm8k.
        repository: What the agent may read.
        draw: The file with the draw of the run.
        steps: The number of training steps.
    """
    script = repository / "start.sh"
    script.write_text('cp "$REPOSITORY/agent.py" code/ && exec python code/agent.py\n', encoding="utf-8")
    variables = f"WAY={way} STEPS={steps} LIMIT={LIMIT} REPOSITORY={repository}"
    command = [sys.executable, "-P", "-m", "a2rl", "run", "--task", "gsm8k", "--agent", str(script), "--budget", "25m"]
    options = ["--limit", str(LIMIT), "--seed-file", str(draw), "--read", str(repository), "--env", variables, "--json"]
    done = subprocess.run([*command, *options], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    record = json.loads((root / "runs" / result["run_id"] / "records" / "validity.json").read_text(encoding="utf-8"))
    return result | {"findings": {each["kind"]: each for each in record["validity"]["findings"]}}


def readable_copy(folder: Path, draw: Draw | None) -> Path:
    """Makes a copy of the repository's code for an agent, with a draw in it if it is to have one."""
    for name in ("a2rl", "tasks"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(Path(__file__).with_name("agent.py"), folder / "agent.py")
    if draw is not None:
        (folder / "draw.json").write_text(draw.model_dump_json(), encoding="utf-8")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def main() -> None:
    """Makes the runs and prints a table."""
    draw = Draw.fresh()
    with tempfile.TemporaryDirectory(prefix="a2rl-leak-", dir=REPOSITORY.parent) as scratch:
        Path(scratch).chmod(0o755)
        secret = Path(scratch) / "secret.json"
        secret.write_text(draw.model_dump_json(), encoding="utf-8")
        for way in sys.argv[1:] or WAYS:
            folder = readable_copy(Path(scratch) / way, draw if way in SEEDED else None)
            found = one_run(way, REPOSITORY, folder, secret)
            said = [f"    {each['level']} {each['kind']}: {each['text']}\n" for each in found["findings"].values()]
            scores = f"from {found['baseline']:.1f} to {found['private']:.1f} (public {found['best']:.1f})"
            sys.stdout.writelines([f"{way}: {scores}, {found['validity']} ({found['run_id']})\n", *said])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
