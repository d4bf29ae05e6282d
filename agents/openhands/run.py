"""Runs OpenHands unattended: its SDK's default tools in the workspace, with a transcript as JSON lines on stdout.

    python run.py --model openai/gpt-5.4 --base-url https://api.openai.com/v1 --state FOLDER [--resume ID] PROMPT

Lines are the SDK's events (`kind` is their class), and two additional kinds: `Session` has the id by which the
conversation can be resumed, and `Failure` the error that ended the work. The exit code is 0 if the agent has finished,
else 1.
"""

import argparse
import json
import os
import sys
import uuid
from importlib.metadata import version
from pathlib import Path

os.environ["OPENHANDS_SUPPRESS_BANNER"] = "1"

from openhands.sdk import LLM, Agent, Conversation, Event, Tool
from openhands.sdk.conversation import ConversationExecutionStatus
from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.event import SystemPromptEvent
from openhands.tools.preset.default import get_default_condenser, get_default_tools
from openhands.tools.terminal import TerminalTool
from openhands.tools.terminal.metadata import CmdOutputMetadata

COMMAND_TIMEOUT_S = 86_400
"""Training prints nothing for hours."""
ANSWER_TIMEOUT_S = 1_800
RETRIES = 30
"""With waits of up to a minute, so that rate limits have half an hour to reset."""
NO_TURN_LIMIT = 1_000_000


def main() -> int:
    """Runs a conversation to its end."""
    args = _arguments()
    llm = LLM(
        model=args.model,
        base_url=args.base_url,
        api_key=os.environ.get("OPENAI_API_KEY"),
        timeout=ANSWER_TIMEOUT_S,
        num_retries=RETRIES,
        usage_id="agent",
    )
    conversation = Conversation(
        agent=_agent(llm),
        workspace=Path.cwd(),
        persistence_dir=args.state,
        conversation_id=uuid.UUID(args.resume) if args.resume else uuid.uuid4(),
        callbacks=[show],
        max_iteration_per_run=args.max_turns or NO_TURN_LIMIT,
        visualizer=None,
        delete_on_close=False,
    )
    say("Session", id=str(conversation.id), model=args.model, version=version("openhands-sdk"))
    conversation.send_message(args.prompt)
    try:
        conversation.run()
    except ConversationRunError as error:
        say("Failure", code=type(error.original_exception).__name__, detail=str(error.original_exception))
    finally:
        conversation.close()
    status = conversation.state.execution_status
    if status not in (ConversationExecutionStatus.FINISHED, ConversationExecutionStatus.ERROR):
        say("Failure", code=status.value, detail="the conversation did not finish")  # such as `stuck`
    return 0 if status is ConversationExecutionStatus.FINISHED else 1


def _agent(llm: LLM) -> Agent:
    """Returns OpenHands' default agent without a browser; its terminal waits for silent commands."""
    terminal = {
        "terminal_type": "subprocess",
        "no_change_timeout_seconds": COMMAND_TIMEOUT_S,
        "shell_path": str(Path(__file__).with_name("shell.sh")),
        # The prompt that marks the end of a command, for all shells after the first.
        "env": {"PROMPT_COMMAND": f'export PS1="{CmdOutputMetadata.to_ps1_prompt()}"'},
    }
    tools = [
        Tool(name=tool.name, params=terminal) if tool.name == TerminalTool.name else tool
        for tool in get_default_tools(enable_browser=False)
    ]
    condenser = get_default_condenser(llm.model_copy(update={"usage_id": "condenser"}))
    return Agent(llm=llm, tools=tools, system_prompt_kwargs={"cli_mode": True}, condenser=condenser)


def show(event: Event) -> None:
    """Prints an event."""
    hidden = {"tools"} if isinstance(event, SystemPromptEvent) else None
    print(event.model_dump_json(exclude=hidden, exclude_none=True), flush=True)


def say(kind: str, **fields: object) -> None:
    """Prints another line of the transcript."""
    print(json.dumps({"kind": kind, **fields}), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs OpenHands unattended.")
    parser.add_argument("--model", required=True, help="model name of litellm")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--state", required=True, help="folder of saved conversations")
    parser.add_argument("--resume", help="id of a conversation to continue")
    parser.add_argument("--max-turns", type=int, default=0)
    parser.add_argument("prompt")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
