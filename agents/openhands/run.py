"""OpenHands without a person: its SDK's default tools in the workspace, what happens as JSON lines on stdout.

    python run.py --model openai/gpt-5.4 --base-url https://api.openai.com/v1 --state FOLDER [--resume ID] PROMPT

Lines are the SDK's events (`kind` is their class), and three kinds of our own: `Session` names the conversation, by
which it can be resumed, `Usage` says what one answer of the LLM took, `Failure` what ended the work. Ends with 0 when
the agent has finished, else with 1.
"""

import argparse
import json
import os
import sys
import uuid
from importlib.metadata import version
from pathlib import Path

os.environ["OPENHANDS_SUPPRESS_BANNER"] = "1"

from openhands.sdk import LLM, Agent, Conversation, ConversationStats, Event, LocalConversation, TokenUsage, Tool
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
"""With waits of up to a minute: rate limits get half an hour to lift."""
NO_TURN_LIMIT = 1_000_000


def main() -> int:
    args = _arguments()
    llm = LLM(
        model=args.model,
        base_url=args.base_url,
        api_key=os.environ.get("OPENAI_API_KEY"),
        timeout=ANSWER_TIMEOUT_S,
        num_retries=RETRIES,
        usage_id="agent",
    )
    printer = Printer()
    conversation = Conversation(
        agent=_agent(llm),
        workspace=Path.cwd(),
        persistence_dir=args.state,
        conversation_id=uuid.UUID(args.resume) if args.resume else uuid.uuid4(),
        callbacks=[printer.event],
        max_iteration_per_run=args.max_turns or NO_TURN_LIMIT,
        visualizer=None,
        delete_on_close=False,
    )
    printer.begin(conversation, args.model)
    conversation.send_message(args.prompt)
    try:
        conversation.run()
    except ConversationRunError as error:
        printer.say("Failure", code=type(error.original_exception).__name__, detail=str(error.original_exception))
    finally:
        printer.usage()
        conversation.close()
    return 0 if conversation.state.execution_status is ConversationExecutionStatus.FINISHED else 1


def _agent(llm: LLM) -> Agent:
    """OpenHands' own agent without its browser; its terminal works everywhere and waits for silent commands."""
    terminal = {
        "terminal_type": "subprocess",
        "no_change_timeout_seconds": COMMAND_TIMEOUT_S,
        "shell_path": str(Path(__file__).with_name("shell.sh")),
        # The prompt by which it sees that a command has ended, for the shells that come after the first.
        "env": {"PROMPT_COMMAND": f'export PS1="{CmdOutputMetadata.to_ps1_prompt()}"'},
    }
    tools = [
        Tool(name=tool.name, params=terminal) if tool.name == TerminalTool.name else tool
        for tool in get_default_tools(enable_browser=False)
    ]
    condenser = get_default_condenser(llm.model_copy(update={"usage_id": "condenser"}))
    return Agent(llm=llm, tools=tools, system_prompt_kwargs={"cli_mode": True}, condenser=condenser)


class Printer:
    """Writes the transcript."""

    def __init__(self) -> None:
        self._stats = ConversationStats()
        self._known: set[str] = set()

    def begin(self, conversation: LocalConversation, model: str) -> None:
        """What a resumed conversation has used before was printed before."""
        self._stats = conversation.conversation_stats
        self._known = {usage.response_id for usage in self._usages()}
        self.say("Session", id=str(conversation.id), model=model, version=version("openhands-sdk"))

    def event(self, event: Event) -> None:
        self.usage()
        hidden = {"tools"} if isinstance(event, SystemPromptEvent) else None
        print(event.model_dump_json(exclude=hidden, exclude_none=True), flush=True)

    def usage(self) -> None:
        """The answers that were not there before."""
        cost = self._stats.get_combined_metrics().accumulated_cost
        for usage in self._usages():
            if usage.response_id not in self._known:
                self._known.add(usage.response_id)
                self.say("Usage", **usage.model_dump(), session_cost=cost)

    def say(self, kind: str, **fields: object) -> None:
        print(json.dumps({"kind": kind, **fields}), flush=True)

    def _usages(self) -> list[TokenUsage]:
        return [usage for metrics in self._stats.usage_to_metrics.values() for usage in metrics.token_usages]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs OpenHands without a person.")
    parser.add_argument("--model", required=True, help="as litellm names it")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--state", required=True, help="folder where conversations are kept")
    parser.add_argument("--resume", help="conversation to go on with")
    parser.add_argument("--max-turns", type=int, default=0)
    parser.add_argument("prompt")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
