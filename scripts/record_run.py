"""Records a run for the README: docs/run.cast, for asciinema, and docs/run.svg, which plays in a browser.

    pip install asciinema==2.4.0    # npm is needed, too, for svg-term-cli
    python scripts/record_run.py    # in a clone, after `make demo`

What took minutes is shown in forty seconds.
"""

import json
import subprocess
import sys
from pathlib import Path

RUN = "a2rl run --task gsm8k --agent scripted --budget 80s"
DOCS = Path(__file__).resolve().parents[1] / "docs"
COLUMNS, ROWS = 136, 18
SECONDS, FRAME_S, LAST_FRAME_S = 40.0, 0.4, 5.0
"""The length of what is shown, of a frame at least, and of the last one."""


def record(command: str, cast: Path) -> None:
    """Records a command, and writes it at the speed at which it is shown.

    Args:
        command: The command, as it is typed.
        cast: The file of asciinema.
    """
    size = ("--cols", str(COLUMNS), "--rows", str(ROWS))
    subprocess.run(["asciinema", "rec", "--overwrite", "--quiet", *size, "--command", command, cast], check=True)
    header, *events = map(json.loads, cast.read_text(encoding="utf-8").splitlines())
    faster = min(1.0, SECONDS / events[-1][0])
    frames: dict[int, str] = {}
    for at, _, text in events:
        frame = int(at * faster / FRAME_S)
        frames[frame] = frames.get(frame, "") + text
    shown = [(round(frame * FRAME_S, 1), "o", text) for frame, text in sorted(frames.items())]
    shown = [(0.0, "o", f"$ {command}\r\n"), *shown, (shown[-1][0] + LAST_FRAME_S, "o", "")]
    kept = {name: header[name] for name in ("version", "width", "height")} | {"title": command}
    cast.write_text("".join(json.dumps(each) + "\n" for each in (kept, *shown)), encoding="utf-8")


if __name__ == "__main__":
    record(sys.argv[1] if len(sys.argv) > 1 else RUN, DOCS / "run.cast")
    drawing = ["npx", "--yes", "svg-term-cli@2.1.1", "--window", "--no-cursor"]
    subprocess.run([*drawing, "--in", DOCS / "run.cast", "--out", DOCS / "run.svg"], check=True)
