"""Command lines: which program of an agent they start, and what tools that train by themselves are told to do.

They were seen as processes, or stand in a transcript, which also has the files that an agent wrote by its tools.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from a2rl.agent_systems.transcripts.atif import Step, ToolCall
from a2rl.labels.routes import Route

PYTHON = re.compile(r"python[0-9.]*$")
LAUNCHERS = frozenset({
    "torchrun", "accelerate", "deepspeed", "uv", "poetry", "nohup", "time", "env", "exec", "nice", "timeout",
})  # fmt: skip
LONGEST_LINE = 10_000
"""Characters of a command that is read; shlex takes quadratic time for a long word."""
SEPARATORS = re.compile(r"&&|\|\||[;|&\n]")
STAGES: dict[str, Route] = {
    "sft": "SFT", "pt": "SFT", "dpo": "DPO", "kto": "DPO", "orpo": "DPO", "simpo": "DPO", "cpo": "DPO", "ppo": "PPO",
    "grpo": "GRPO", "rloo": "GRPO", "gkd": "SFT",
}  # fmt: skip
STAGE = re.compile(r"^[^\S\n]*[\"']?(?:stage|rl|algorithm)[\"']?\s*[:=]\s*[\"']?(\w+)", re.MULTILINE)
ESTIMATORS: dict[str, Route] = {"gae": "PPO", "reinforce_plus_plus": "PPO", "reinforce": "PPO"}
PATHS = ("file_path", "path", "filePath", "absolute_path")
TEXTS = ("content", "file_text", "text", "contents")
COMMANDS = ("command", "cmd", "script", "code")
"""Arguments of tools that hold a path, a text to write, or a command."""
MAX_COMMANDS = 500
"""Commands that are read in a transcript."""
GROUPED = ("grpo", "rloo", "remax", "group_norm", "opo", "dr_grpo")


class Started(NamedTuple):
    """What a command line does."""

    script: str = ""
    """A Python file that it runs..."""
    route: Route | None = None
    """...or what a tool trains..."""
    why: str = ""
    shell: str = ""
    """...or a shell script that it runs: its path, or its text after a line break."""


def lines_of(script: str) -> Iterator[list[str]]:
    """Yields the commands of a shell script, as words."""
    joined = re.sub(r"\\\n", " ", script)
    for raw in joined.splitlines():
        line = raw.strip()
        if not line or line.startswith("#") or len(line) > LONGEST_LINE:
            continue
        for part in _parts(line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                continue
            if words:
                yield words


def _parts(line: str) -> list[str]:
    """Splits a line into its commands; quoted separators do not count."""
    try:
        lexer = shlex.shlex(line, posix=False, punctuation_chars=True)
        lexer.whitespace_split = True
        parts: list[list[str]] = [[]]
        for word in lexer:
            if word in {"&&", "||", ";", "|", "&"}:
                parts.append([])
            else:
                parts[-1].append(word)
        return [" ".join(part) for part in parts if part]
    except ValueError:
        return SEPARATORS.split(line)


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


def started(words: Sequence[str], files: dict[str, str]) -> Started:
    """Returns what a command line does.

    Args:
        words: The command line.
        files: The texts of the agent's files, for the settings that a tool reads.
    """
    rest = _without_launchers(list(words))
    if not rest:
        return Started()
    program, arguments = PurePosixPath(rest[0]).name, rest[1:]
    tool = _tool(program, arguments, files)
    return tool if tool is not None else _program(rest[0], program, arguments, files)


def _program(path: str, program: str, arguments: list[str], files: dict[str, str]) -> Started:
    if PYTHON.match(program):
        return _python(arguments, files)
    if program in {"bash", "sh", "source", "."} or program.endswith(".sh"):
        return _shell([path, *arguments] if program.endswith(".sh") else arguments)
    if program.endswith(".py"):
        return Started(script=path)
    if program == "cp" and any("MODEL_PATH" in each or "models/" in each for each in arguments):
        return Started(route="copy", why=" ".join([program, *arguments]))
    return Started()


def _without_launchers(words: list[str]) -> list[str]:
    """Removes variables and launchers before the command."""
    while words:
        name = PurePosixPath(words[0]).name
        if re.match(r"\w+=", words[0]) or name in LAUNCHERS:
            words = words[1:]
            if name in {"torchrun", "accelerate", "deepspeed"}:
                return _launched(words)
        elif words[0] in {"run", "launch"} or re.fullmatch(r"\d+[smh]?", words[0]):
            words = words[1:]
        else:
            return words
    return words


def _launched(words: list[str]) -> list[str]:
    """Returns the Python command after the options of a launcher."""
    for place, word in enumerate(words):
        if word in {"-m", "--module"}:
            return ["python", "-m", *words[place + 1 :]]
        if word.endswith(".py"):
            return ["python", *words[place:]]
    return []


def _python(arguments: list[str], files: dict[str, str]) -> Started:
    while arguments:
        word = arguments[0]
        if word == "-m" and len(arguments) > 1:
            return _module(arguments[1], arguments[2:], files)
        if word == "-c":
            break
        if not word.startswith("-"):
            return Started(script=word)
        arguments = arguments[2:] if word in {"-W", "-X"} else arguments[1:]
    return Started()


def _module(name: str, arguments: list[str], files: dict[str, str]) -> Started:
    if (tool := _tool(name, arguments, files)) is not None:
        return tool
    return Started(script=f"{name.replace('.', '/')}.py")


def _shell(arguments: list[str]) -> Started:
    if arguments and arguments[0].startswith("-"):
        text = arguments[1] if len(arguments) > 1 else ""
        return Started(shell=f"\n{text}")
    return Started(shell=arguments[0]) if arguments else Started()


def _tool(program: str, arguments: list[str], files: dict[str, str]) -> Started | None:
    """Returns what a tool trains; None if the program is none that is known."""
    text = " ".join((program, *arguments))
    route: Route | None = None
    if program.startswith(("verl.", "recipe.")) and ("sft" in program):
        route = "SFT"
    elif program.startswith("verl.") and "ppo" in program:
        route = _verl(arguments)
    elif program in {"mergekit-yaml", "mergekit", "mergekit-mega"}:
        route = "merge"
    elif program == "trl" and arguments:
        route = STAGES.get(arguments[0])
    elif program == "swift" and arguments:
        route = _swift(arguments)
    elif program.startswith("openrlhf.cli."):
        route = _named(program, arguments)
    elif program in {"llamafactory-cli", "axolotl", "tune"} or program.startswith(("axolotl.", "llamafactory")):
        route = _configured(text, arguments, files)
    return Started(route=route, why=text[:300]) if route else None


def _verl(arguments: list[str]) -> Route:
    settings = dict(each.split("=", 1) for each in arguments if "=" in each)
    estimator = settings.get("algorithm.adv_estimator", "gae").lower()
    if any("multi_turn.enable=true" in each.lower() for each in arguments):
        return "online RL"
    return "GRPO" if any(name in estimator for name in GROUPED) else ESTIMATORS.get(estimator, "PPO")


def _swift(arguments: list[str]) -> Route | None:
    if arguments[0] != "rlhf":
        return STAGES.get(arguments[0])
    return STAGES.get(_option(arguments, "--rlhf_type") or "dpo")


def _named(program: str, arguments: list[str]) -> Route | None:
    estimator = (_option(arguments, "--advantage_estimator") or "").lower()
    if any(name in estimator for name in GROUPED):
        return "GRPO"
    return next((route for name, route in STAGES.items() if f"_{name}" in program), None)


def _configured(text: str, arguments: list[str], files: dict[str, str]) -> Route | None:
    """Returns the route of a tool that reads a file of settings, or gets them as options."""
    named = [each for each in arguments if each.endswith((".yaml", ".yml", ".json"))]
    settings = [files[path] for name in named for path in files if path.endswith(PurePosixPath(name).name)]
    for stated in (*settings, text):
        found = STAGE.search(stated)
        if found is not None and (route := STAGES.get(found[1])) is not None:
            return route
    if stage := _option(arguments, "--stage"):
        return STAGES.get(stage)
    return next((route for name, route in STAGES.items() if re.search(rf"\b\w*{name}\b", text)), "SFT")


def _option(arguments: list[str], name: str) -> str | None:
    for place, each in enumerate(arguments):
        if each == name and place + 1 < len(arguments):
            return arguments[place + 1]
        if each.startswith(f"{name}="):
            return each.partition("=")[2]
    return None
