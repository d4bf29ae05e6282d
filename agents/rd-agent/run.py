"""Runs RD-Agent unattended: its loop for RL post-training in the workspace, with a transcript as JSON lines on stdout.

    python run.py --session 1 [--resume] [--loops 5] PROMPT

RD-Agent saves its log and its sessions in `~/.rdagent/log/SESSION`; its output goes to stderr. The classes that the
settings in agent.yaml name are in `parts.py`: they add the assignment and the transcript to RD-Agent's loop.
"""

import argparse
import asyncio
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdagent.utils.workflow import LoopBase

LOGS = Path.home() / ".rdagent/log"


def main() -> int:
    """Runs the loop; returns the exit code."""
    args = _arguments()
    os.environ["LOG_TRACE_PATH"] = str(LOGS / args.session)
    os.environ["ASSIGNMENT"] = args.prompt

    import parts  # before any import of RD-Agent, which prints when it is imported

    parts.say(
        "Session", id=args.session, model=os.environ["CHAT_MODEL"], version=version("rdagent"), prompt=args.prompt
    )
    parts.start_recording()

    from rdagent.app.rl.conf import RL_RD_SETTING
    from rdagent.scenarios.rl.loop import RLPostTrainingRDLoop

    RL_RD_SETTING.base_model = os.environ["BASE_MODEL"]
    RL_RD_SETTING.benchmark = os.environ["TASK"]
    loop = _resumed(LOGS / args.session) if args.resume else None
    if loop is None:
        loop = RLPostTrainingRDLoop(RL_RD_SETTING)
        vars(loop.trace).pop("__orig_class__", None)  # an unresolved type, with which sessions cannot be saved
    try:
        asyncio.run(loop.run(loop_n=args.loops))
    except parts.LLMUnavailable as error:
        parts.say("Failure", detail=str(error))
        return 1
    return 0


def _resumed(log: Path) -> "LoopBase | None":
    """Loads the last complete session; the newest may have been interrupted while it was saved."""
    from rdagent.scenarios.rl.loop import RLPostTrainingRDLoop

    saved = {path: (int(path.parent.name), int(path.name.split("_")[0])) for path in log.glob("__session__/*/*_*")}
    for path in sorted(saved, key=lambda path: saved[path], reverse=True):
        try:
            return RLPostTrainingRDLoop.load(path, checkout=True)
        except Exception as error:  # noqa: BLE001 - an incomplete pickle may raise anything
            print(f"{path} cannot be loaded: {error}", file=sys.stderr)
            path.unlink()
    return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs RD-Agent unattended.")
    parser.add_argument("--session", required=True, help="name of the session and of its log folder")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted session")
    parser.add_argument(
        "--loops", type=int, help="number of loops, from a hypothesis to its feedback (default: unlimited)"
    )
    parser.add_argument("prompt")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
