"""The code in an agent's transcript: files that it wrote by its tools, and commands that it ran.

It is used where there is no history of the agent's code, and for commands that were too short to be seen as processes.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from a2rl.agent_systems.transcripts.atif import Step, ToolCall
from a2rl.labels.commands import lines_of

PATHS = ("file_path", "path", "filePath", "absolute_path")
TEXTS = ("content", "file_text", "text", "contents")
COMMANDS = ("command", "cmd", "script", "code")
MAX_COMMANDS = 500


def code_in_steps(steps: Iterable[Step]) -> tuple[dict[str, str], list[list[str]]]:
    """Returns the files that were written, by path, and the command lines that were run, in order."""
    files: dict[str, str] = {}
    commands: list[list[str]] = []
    for call in (call for step in steps for call in step.tool_calls or ()):
        path, text = _first(call, PATHS), _first(call, TEXTS)
        if path and text is not None:
            files[path.removeprefix("/workspace/").lstrip("/")] = text
        commands += _commands(call)
    return files, commands[:MAX_COMMANDS]


def _commands(call: ToolCall) -> Iterator[list[str]]:
    for name in COMMANDS:
        given: Any = call.arguments.get(name)
        if isinstance(given, str):
            yield from lines_of(given)
        elif isinstance(given, list) and given and all(isinstance(each, str) for each in given):
            yield list(given)


def _first(call: ToolCall, names: tuple[str, ...]) -> str | None:
    return next((value for name in names if isinstance(value := call.arguments.get(name), str)), None)
