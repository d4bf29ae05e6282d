"""Chooses the answer to a request, and turns a bash command into a call of the tool that a CLI offers for commands.

The tool is recognised by its name, its arguments by their schema: `Bash` (Claude Code), `shell`, `shell_command` and
`exec_command` (Codex), `run_shell_command` (Gemini CLI), `bash` (OpenCode, mini-swe-agent), `terminal` (OpenHands).

The turn depends only on the number of commands in the conversation so far. So a retry gets the same answer, a resumed
session continues where it stopped, and several agents can share one driver. Only faults are counted here, because they
belong to requests and not to turns.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from a2rl.core.files import digest_of
from a2rl.mock_llm.dialogue import Call, Json, LlmRequest, Reply, Tool, compact
from a2rl.mock_llm.scenario import Fault, Scenario, Usage

SHELLS = (
    "Bash", "bash", "exec_command", "shell_command", "shell", "local_shell", "container.exec", "run_shell_command",
    "terminal", "execute_bash",
)  # fmt: skip
ONE_AT_A_TIME = {"terminal", "execute_bash"}
"""OpenHands' tools accept only one command at a time; several are wrapped into a group, which counts as one."""
COMMANDS = ("command", "cmd", "script")
PREFERRED = {"security_risk": "LOW"}
LONGEST_TIMEOUT_S = 600
DESCRIBED = {"description", "summary"}
FINISH_WORD = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
STILL_RUNNING = re.compile(r"running with session ID (\d+)")
POLL_MS = 30_000
CHARACTERS_PER_TOKEN = 4
SIDE_ANSWER = "Post-training run"
Kind = Literal["main", "side"]


def find_shell(tools: Sequence[Tool]) -> Tool | None:
    """Returns the tool that runs commands; None if the request is a side request."""
    by_name = {tool.name: tool for tool in tools}
    return next((by_name[name] for name in SHELLS if name in by_name), None)


def calls_of(asked: LlmRequest, tool: Tool) -> int:
    """Returns how often the conversation has called a tool so far."""
    return sum(name == tool.name for message in asked.messages for name in message.calls)


def run_command(tool: Tool, command: str, timeout_s: int) -> Call:
    """Returns the call that runs a bash command."""
    if tool.name in ONE_AT_A_TIME and "\n" in command.strip():
        command = f"{{\n{command.strip()}\n}}"
    properties: Json = tool.schema.get("properties", {})
    wanted = set(tool.schema.get("required", ()))
    arguments: Json = {}
    for name, schema in properties.items():
        if name in COMMANDS:
            arguments[name] = ["bash", "-c", command] if schema.get("type") == "array" else command
        elif name.lower().startswith(("timeout", "yield_time")):
            arguments[name] = _timeout(name, schema, timeout_s)
        elif name in wanted:
            arguments[name] = command.splitlines()[0][:60] if name in DESCRIBED else example(schema, name)
    return Call(tool.name, arguments)


def keep_waiting(asked: LlmRequest) -> Call | None:
    """Returns a call that waits for a command of Codex that is still running; None if there is none.

    Codex's `exec_command` may answer before the command has ended; `write_stdin` then waits for further output.
    """
    last = asked.messages[-1] if asked.messages else None
    if last is None or not any(tool.name == "write_stdin" for tool in asked.tools):
        return None
    running = STILL_RUNNING.search(last.text)
    if running is None:
        return None
    return Call("write_stdin", {"session_id": int(running[1]), "chars": "", "yield_time_ms": POLL_MS})


def finish(asked: LlmRequest, tool: Tool) -> Call | None:
    """Returns the call that ends the agent's work; None if it ends by calling no tool.

    mini-swe-agent ends with a command that prints a word from its prompt.
    """
    prompt = asked.preamble + "".join(message.text for message in asked.messages if message.role == "user")
    return run_command(tool, f"echo {FINISH_WORD}", LONGEST_TIMEOUT_S) if FINISH_WORD in prompt else None


def example(schema: Json, name: str = "") -> Any:
    """Returns a simple value that a JSON schema allows."""
    if schema.get("enum"):
        preferred = PREFERRED.get(name)
        return preferred if preferred in schema["enum"] else schema["enum"][0]
    if "const" in schema or "default" in schema:
        return schema.get("const", schema.get("default"))
    for alternatives in ("anyOf", "oneOf", "allOf"):
        if schema.get(alternatives):
            return example(schema[alternatives][0], name)
    kind = schema.get("type", "string")
    kind = str(kind[0] if isinstance(kind, list) else kind).lower()
    if kind == "object":
        properties: Json = schema.get("properties", {})
        return {each: example(properties.get(each, {}), each) for each in schema.get("required", properties)}
    simple = {"boolean": False, "integer": 0, "number": 0, "array": [], "null": None}
    return simple.get(kind, "post-training run")


def _timeout(name: str, schema: Json, timeout_s: int) -> int:
    seconds = min(timeout_s, LONGEST_TIMEOUT_S)
    in_ms = name.lower().endswith("ms") or "millisecond" in str(schema.get("description", "")).lower()
    timeout = seconds * 1000 if in_ms else seconds
    return min(timeout, int(schema.get("maximum", timeout)))


class ScenarioStep(NamedTuple):
    """The position of a request in the scenario, and its answer."""

    kind: Kind
    turn: int | None
    """None for a side request, such as one for a title or a summary."""
    reply: Reply


class Player:
    """Plays a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._faults: Counter[tuple[int, str]] = Counter()

    def step(self, asked: LlmRequest) -> ScenarioStep:
        """Returns the position of a request in the scenario, and its answer."""
        shell = find_shell(asked.tools)
        if shell is None:
            return ScenarioStep("side", None, self._side_reply(asked))
        number = min(calls_of(asked, shell), len(self._scenario.turns) - 1)
        turn = self._scenario.turns[number]
        if waiting := keep_waiting(asked):
            return ScenarioStep("main", number, _reply(asked, "", waiting, None))
        call = run_command(shell, turn.run, turn.timeout_s) if turn.run else finish(asked, shell)
        return ScenarioStep("main", number, _reply(asked, turn.say, call, turn.usage))

    def fault(self, asked: LlmRequest, step: ScenarioStep) -> Fault | None:
        """Returns the fault for this request, if there is one, and counts it."""
        if step.turn is None:
            return None
        fault = self._scenario.turns[step.turn].fault
        if fault is None or fault.times == "always":
            return fault
        key = (step.turn, digest_of(asked.messages[0].text if asked.messages else ""))
        self._faults[key] += 1
        return fault if self._faults[key] <= fault.times else None

    def _side_reply(self, asked: LlmRequest) -> Reply:
        request = asked.preamble + "".join(message.text for message in asked.messages)
        prepared = (aside.say for aside in self._scenario.asides if re.search(aside.asked, request))
        default = SIDE_ANSWER if asked.json_schema is None else compact(example(asked.json_schema))
        return _reply(asked, next(prepared, default), None, None)


def count_tokens(asked: LlmRequest) -> int:
    """Estimates the tokens of a request from its length."""
    return _tokens(len(asked.preamble) + sum(len(message.text) for message in asked.messages))


def _reply(asked: LlmRequest, say: str, call: Call | None, usage: Usage | None) -> Reply:
    written = len(say) + (len(compact(call.arguments)) if call else 0)
    return Reply(say, call, usage or _estimate(asked, written))


def _estimate(asked: LlmRequest, written: int) -> Usage:
    """Estimates the usage. Everything up to the last answer was sent before, so it counts as cached."""
    answers = [number for number, message in enumerate(asked.messages) if message.role == "assistant"]
    before = asked.messages[: answers[-1]] if answers else ()
    known = len(asked.preamble) + sum(len(message.text) for message in before) if answers else 0
    return Usage(
        input_tokens=count_tokens(asked), output_tokens=_tokens(written), cached_tokens=known // CHARACTERS_PER_TOKEN
    )


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)
