"""RD-Agent without a person: its own loop for RL post-training in the workspace, what happens as JSON lines on stdout.

    python run.py --session 1 [--resume] [--loops 5] PROMPT

RD-Agent keeps its log and its sessions in `~/.rdagent/log/SESSION`. Its own words go to stderr. What the settings
in agent.yaml name, `parts.py` brings: the loop is RD-Agent's, it only learns of the assignment and is listened to.
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
    args = _arguments()
    os.environ["LOG_TRACE_PATH"] = str(LOGS / args.session)
    os.environ["ASSIGNMENT"] = args.prompt

    import parts  # before anything of RD-Agent, which prints from its first import on

    parts.say(
        "Session", id=args.session, model=os.environ["CHAT_MODEL"], version=version("rdagent"), prompt=args.prompt
    )
    parts.listen()

    from rdagent.app.rl.conf import RL_RD_SETTING
    from rdagent.scenarios.rl.loop import RLPostTrainingRDLoop

    RL_RD_SETTING.base_model = os.environ["BASE_MODEL"]
    RL_RD_SETTING.benchmark = os.environ["TASK"]
    loop = _resumed(LOGS / args.session) if args.resume else None
    if loop is None:
        loop = RLPostTrainingRDLoop(RL_RD_SETTING)
        vars(loop.trace).pop("__orig_class__", None)  # a type's forward reference, with which no session can be saved
    try:
        asyncio.run(loop.run(loop_n=args.loops))
    except parts.GaveUp as error:
        parts.say("Failure", detail=str(error))
        return 1
    return 0


def _resumed(log: Path) -> "LoopBase | None":
    """The loop as its last whole session has it; the newest may have been cut off while it was written."""
    from rdagent.scenarios.rl.loop import RLPostTrainingRDLoop

    saved = {path: (int(path.parent.name), int(path.name.split("_")[0])) for path in log.glob("__session__/*/*_*")}
    for path in sorted(saved, key=lambda path: saved[path], reverse=True):
        try:
            return RLPostTrainingRDLoop.load(path, checkout=True)
        except Exception as error:  # noqa: BLE001 - whatever half a pickle raises
            print(f"{path} cannot be read: {error}", file=sys.stderr)
            path.unlink()
    return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs RD-Agent without a person.")
    parser.add_argument("--session", required=True, help="name of its folder of logs")
    parser.add_argument("--resume", action="store_true", help="go on where the session was cut off")
    parser.add_argument("--loops", type=int, help="from a hypothesis to its feedback; unless given, no end")
    parser.add_argument("prompt")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
