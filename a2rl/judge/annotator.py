"""Annotators: how a judge is asked which of two outputs is better, and how its answer is read.

An annotator is a configuration in the format of alpaca-eval: a prompt template, a model with its decoding, and a
parser. It is found by name among those of this folder's `annotators/` and those of the installed package `alpaca-eval`,
or it is the path of a folder with a `configs.yaml`.

    annotator = find_annotator("alpaca_eval_gpt5_2_fn")
    annotator.messages({"instruction": "...", "output_1": "...", "output_2": "..."})
    annotator.first_share(reply)      # how surely the first output is better, from 0 to 1
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from a2rl.core.errors import UsageError, unknown_name
from a2rl.core.files import digest_of, expanded
from a2rl.judge.parsers import UnreadableReplyError, check_parser, first_share, forms_of, parse

OWN = Path(__file__).with_name("annotators")
FILES = ("configs.yaml", "config.yaml")
OPENAI_CLIENT = "openai_completions"
LENGTHS = {"max_tokens_to_sample": "max_tokens", "max_new_tokens": "max_tokens"}
"""Names of other clients for the number of tokens."""
NOT_SENT = {
    "model_name", "client_kwargs", "client_function_name", "client_config_path", "price_per_token", "requires_chatml",
    "is_chatml_prompt", "is_chat", "is_strip", "model_kwargs", "batch_size", "num_procs", "n_retries",
}  # fmt: skip
"""Arguments of the package's own clients, which are not part of a request."""
UNSUPPORTED = ("tokens_to_favor", "tokens_to_avoid")
SHORTEST_LINE = 3
"""Shorter lines of a prompt are brackets and the like."""
FIELDS = ("instruction", "output_1", "output_2")
_TURN = re.compile(r"<\|im_start\|>(\w++)[^\n]*+\n((?:(?!<\|im_start\|>).)*?)<\|im_end\|>", re.DOTALL)
_FIELD = re.compile(r"\{([a-z_0-9]+)\}")
_HUMAN, _ASSISTANT = re.compile(r"^\s*Human:\s*"), re.compile(r"(?<!\s)\s*+Assistant:\s*$")


@dataclass(frozen=True, slots=True)
class Annotator:
    """One configuration."""

    name: str
    template: str
    """A prompt in ChatML, or else the text of one user's turn, with the fields in braces."""
    model: str
    decoding: Mapping[str, Any]
    """What is sent with a request besides model and messages."""
    parser: str
    parser_arguments: Mapping[str, Any]
    reads_choice: bool
    """Whether the parser reads the whole choice, with its log probabilities, and not only its text."""
    switches: bool
    """Whether the instruction decides which output is shown first."""
    base_url: str | None
    """The endpoint that the configuration names."""
    is_openai: bool
    """Whether the configuration is for an OpenAI-compatible endpoint."""

    @property
    def digest(self) -> str:
        """The digest of what a verdict depends on besides model and decoding."""
        return digest_of([self.template, self.parser, self.parser_arguments, self.reads_choice, self.switches])

    @property
    def lines(self) -> frozenset[str]:
        """The prompt's own lines, without those that hardly anything but a prompt's format would make special."""
        found = (line.strip() for _, text in self._turns() for line in text.splitlines() if not _FIELD.search(line))
        return frozenset(line for line in found if len(line) >= SHORTEST_LINE)

    def messages(self, fields: Mapping[str, str]) -> list[dict[str, str]]:
        """Returns the prompt with the fields filled in."""
        return [
            {"role": role, "content": _FIELD.sub(lambda match: fields.get(match[1], match[0]), text)}
            for role, text in self._turns()
        ]

    def first_share(self, reply: Mapping[str, Any]) -> float:
        """Returns how surely the first output is better, from 0 to 1.

        Raises:
            UnreadableReplyError: The reply has no preference in the form that was asked for.
        """
        choice = choice_of(reply)
        if self.reads_choice:
            return first_share(parse(self.parser, self.parser_arguments, choice))
        first, *others = forms_of(said(choice))
        try:
            return first_share(parse(self.parser, self.parser_arguments, first))
        except UnreadableReplyError:
            for form in others:
                with suppress(UnreadableReplyError):
                    return first_share(parse(self.parser, self.parser_arguments, form))
            raise

    def _turns(self) -> list[tuple[str, str]]:
        turns = [(role, content.strip()) for role, content in _TURN.findall(self.template)]
        return turns or [("user", _ASSISTANT.sub("", _HUMAN.sub("", self.template)).strip())]


def choice_of(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the first choice of a reply. Raises UnreadableReplyError if there is none."""
    try:
        choice = reply["choices"][0]
    except (LookupError, TypeError) as error:
        raise UnreadableReplyError("the judge's reply has no answer") from error
    if not isinstance(choice, dict):
        raise UnreadableReplyError("the judge's reply has no answer")
    return choice


def said(choice: Mapping[str, Any]) -> str:
    """Returns the text of a choice: the arguments of the function that it calls, or else its content.

    Raises:
        UnreadableReplyError: It has neither.
    """
    message = choice.get("message")
    if isinstance(message, dict):
        calls = message.get("tool_calls")
        call = calls[0] if isinstance(calls, list) and calls else {"function": message.get("function_call")}
        function = call.get("function") if isinstance(call, dict) else None
        text = function.get("arguments") if isinstance(function, dict) else message.get("content")
        if isinstance(text, str):
            return text
    raise UnreadableReplyError("the judge's reply has no text")


def annotator_names() -> list[str]:
    """Returns the names of all annotators that are shipped or come with the package."""
    return sorted({path.parent.name for folder in _folders() for name in FILES for path in folder.glob(f"*/{name}")})


@cache
def find_annotator(name: str) -> Annotator:
    """Returns an annotator by its name or folder.

    Raises:
        UsageError: There is none, or its configuration cannot be used.
    """
    folders = [expanded(name)] if "/" in name else [folder / name for folder in _folders()]
    for path in (folder / file for folder in folders for file in FILES):
        if path.is_file():
            return _read(path)
    raise unknown_name("annotator", name, annotator_names())


def _folders() -> Iterator[Path]:
    yield OWN
    spec = importlib.util.find_spec("alpaca_eval")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "evaluators_configs"


def _read(path: Path) -> Annotator:
    name = path.parent.resolve().name
    try:
        configs = yaml.safe_load(path.read_text(encoding="utf-8"))
        if name not in configs and len(configs) != 1:
            raise UsageError(f"{path} has {len(configs)} annotators: a judge is one of them, in a folder of its own")
        config = configs[name] if name in configs else next(iter(configs.values()))
        template = _template(path.parent, config["prompt_template"])
        arguments = dict(config["completions_kwargs"])
        parser_arguments = config.get("completion_parser_kwargs") or {}
        check_parser(kind := config.get("fn_completion_parser", "regex_parser"), parser_arguments)
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"the annotator {path} cannot be read: {error!r}; compare it with alpaca-eval's own"
        ) from error
    _check(path, config, template, arguments)
    return Annotator(
        name=name,
        template=template,
        model=str(arguments.get("model_name", "")),
        decoding={LENGTHS.get(str(key), str(key)): value for key, value in arguments.items() if key not in NOT_SENT},
        parser=kind,
        parser_arguments=parser_arguments,
        reads_choice=config.get("completion_key", "completions") == "completions_all",
        switches=bool(config.get("is_randomize_output_order", True)),
        base_url=(arguments.get("client_kwargs") or {}).get("base_url"),
        is_openai=config.get("fn_completions") == OPENAI_CLIENT,
    )


def _template(folder: Path, name: str) -> str:
    """Reads a prompt template. Its path is relative to the folder of all annotators."""
    for base in (folder.parent, folder, *_folders()):
        if (path := base / name).is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(f"there is no prompt {name}")


def _check(path: Path, config: Mapping[str, Any], template: str, arguments: Mapping[str, Any]) -> None:
    """Raises UsageError if the configuration needs something that is not supported here."""
    fields = _FIELD.findall(template)
    if config.get("batch_size", 1) != 1 or len(set(fields)) < len(fields):
        raise UsageError(f"the annotator {path} asks about several pairs at once: choose one that asks about one")
    if set(fields) != set(FIELDS):
        raise UsageError(f"the prompt of the annotator {path} must have the fields {', '.join(FIELDS)}, each once")
    if unsupported := [key for key in UNSUPPORTED if key in arguments]:
        raise UsageError(f"the annotator {path} needs {unsupported[0]}, which OpenAI-compatible endpoints lack")
