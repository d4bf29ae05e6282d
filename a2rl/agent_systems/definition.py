"""The definition of an agent system, as read from `agents/<id>/agent.yaml`: there is no registry of agents to edit.

It says how the agent system is installed, started and resumed, and how its transcript is read.

`start`, `resume`, `turn_limit`, `env` and `files` may contain these placeholders; write `{{` for a literal brace:
`{program}` is the installed program, `{agent_dir}` the definition's folder, `{workspace}` and `{home}` the agent's
folders, `{prompt}` its prompt, `{driver}` and `{base_url}` the LLM and the URL of its API, `{max_turns}` the limit on
turns, `{session}` the session to resume, and `{attempt}` the number of this start.
"""

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from a2rl.agent_systems.transcripts import formats
from a2rl.core.errors import TaskDefinitionError, UsageError, unknown_name
from a2rl.core.files import StrictModel, read_yaml, validation_message
from a2rl.core.urls import api_address, require_other_host

Name = Literal[
    "program", "agent_dir", "workspace", "home", "prompt", "driver", "base_url", "max_turns", "session", "attempt"
]
STDOUT = "stdout"
PLACEHOLDERS: tuple[Name, ...] = Name.__args__  # type: ignore[attr-defined]


def _known_names(text: str) -> str:
    try:
        text.format(**dict.fromkeys(PLACEHOLDERS, ""))
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:  # such as {home.name}
        raise ValueError(
            f"unknown placeholder; allowed: {', '.join(PLACEHOLDERS)}; write {{{{ for a literal brace"
        ) from error
    return text


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _known_format(name: str) -> str:
    if name not in formats():
        raise ValueError(str(unknown_name("transcript format", name, formats())))
    return name


def _below_home(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or parts[0][0] in "/~$" or "\0" in path:
        raise ValueError("not a path below its HOME, such as .tool/settings.json")
    return path


def _accepted_by(check: Callable[[str], object]) -> AfterValidator:
    def validate(text: str) -> str:
        try:
            check(text)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return text

    return AfterValidator(validate)


Host = Annotated[str, _accepted_by(require_other_host)]
Url = Annotated[str, _accepted_by(api_address)]
HomePath = Annotated[str, AfterValidator(_below_home)]
Text = Annotated[str, AfterValidator(_known_names)]
OneOrMore = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]


class Install(StrictModel):
    """The packages of an agent system at pinned versions, from npm or from PyPI."""

    npm: OneOrMore = ()
    """npm packages, such as `@openai/codex@0.169.0`. The first one is the agent system itself."""
    pip: OneOrMore = ()
    """pip packages, such as `mini-swe-agent==2.4.6`. They are installed into their own virtual environment."""
    python: Annotated[str, Field(pattern=r"^3\.\d+$")] | None = None
    """The oldest Python version that the pip packages support, such as `3.12`. By default, a2rl's Python is used."""
    lock: str | None = None
    """A file next to agent.yaml with the versions of all dependencies of the pip packages. It is for packages whose
    dependencies pip takes long to resolve."""

    @property
    def pins(self) -> tuple[str, ...]:
        """All packages, with their versions."""
        return self.npm + self.pip


class TranscriptSource(StrictModel):
    """Where an agent system writes its transcript, and in which format."""

    format: Annotated[str, AfterValidator(_known_format)]
    """The name of a module in a2rl/agent_systems/transcripts, with hyphens instead of underscores."""
    sources: Annotated[tuple[HomePath, ...], BeforeValidator(_one_or_more)] = Field(default=(STDOUT,), alias="from")
    """`stdout`, or patterns of files in its HOME. Files are read before stdout."""

    @property
    def is_printed(self) -> bool:
        """Whether the agent's output on stdout is its transcript, or a part of it."""
        return STDOUT in self.sources

    @property
    def patterns(self) -> tuple[str, ...]:
        """The file patterns among the sources."""
        return tuple(source for source in self.sources if source != STDOUT)


class Agent(StrictModel):
    """An agent system, defined by `agents/<id>/agent.yaml` or by a start script of the user."""

    id: str
    title: str
    start: Annotated[tuple[Text, ...], Field(min_length=1)]
    """The command line that starts it. It runs in the workspace."""
    resume: tuple[Text, ...] = ()
    """The command line that continues a session. Without it, a resumed run starts a new session with a summary."""
    turn_limit: tuple[Text, ...] = ()
    """Arguments that are added to the command line if the run limits the number of turns."""
    install: Install | None = None
    program: str | None = None
    """The name of the executable that the installation provides."""
    driver: str | None = None
    """The LLM that drives it, unless the run names another one."""
    base_url: Url | None = None
    """The URL of the LLM's API, unless the run names another one."""
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment variables that it gets. They are settings, not secrets."""
    files: dict[HomePath, Text] = Field(default_factory=dict)
    """Files in its HOME, by path. They are written before each start."""
    forward_env: tuple[str, ...] = ()
    """Names of the user's environment variables (API keys) that it gets. It gets none of the others. If its requests
    pass through the relay, it gets a stand-in for each, which becomes the key only there."""
    needs_one_of: tuple[str, ...] = ()
    """Those of `forward_env` of which at least one must be set if the default base_url is used."""
    hosts: tuple[Host, ...] = ()
    """Hosts that it may connect to, through a proxy that logs the connections."""
    python: str | None = None
    """The Python environment with which it trains: an interpreter, or a folder with `bin/python`. By default, the
    environment of `scripts/setup_environment.sh agent`, or a2rl's own."""
    read: OneOrMore = ()
    """Folders of this machine that it may read, such as a cache of models."""
    transcript: TranscriptSource | None = None
    messages: Literal["claude-code"] | None = None
    """The format in which it reads its prompt, and messages while it works, from its standard input. None: it does not
    read them there."""
    exits: dict[int, str] = Field(default_factory=dict)
    """The meaning of its exit codes, in plain words."""
    prompt_note: str = ""
    """A text that is added to the common prompt for this agent system."""
    folder: Path = Path()
    """The folder of the definition. The loader sets it."""

    @property
    def calls_llm(self) -> bool:
        """Whether an LLM drives it."""
        return self.base_url is not None

    @property
    def may_call_llm(self) -> bool:
        """Whether an LLM may drive it: its definition has the URL of an API, or hands it a key."""
        return self.calls_llm or bool(self.forward_env)

    @property
    def takes_base_url(self) -> bool:
        """Whether the URL of its LLM can be set, so that its requests can pass through the relay."""
        texts = (*self.start, *self.resume, *self.env.values(), *self.files.values())
        return any("{base_url}" in text for text in texts)

    @property
    def limits_turns(self) -> bool:
        """Whether it can be told a limit on its turns."""
        texts = (*self.start, *self.env.values(), *self.files.values())
        return bool(self.turn_limit) or any("{max_turns}" in text for text in texts)

    def command(self, names: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """Returns the command line of a first start. Placeholders that are not in `names` become empty, except
        `{agent_dir}`."""
        return self._filled(self.start, names)

    def resume_command(self, names: Mapping[str, str]) -> list[str]:
        """Returns the command line that continues the session `names["session"]`."""
        return self._filled(self.resume, names)

    def _filled(self, parts: tuple[str, ...], names: Mapping[str, str]) -> list[str]:
        known: dict[str, str] = dict.fromkeys(PLACEHOLDERS, "")
        known |= {"agent_dir": str(self.folder), **names}
        limit = self.turn_limit if known["max_turns"] else ()
        return [part.format(**known) for part in (*parts, *limit)]


def agent_ids(root: Path) -> list[str]:
    """Returns the names of the folders in agents/ that contain an agent.yaml."""
    return sorted(path.parent.name for path in (root / "agents").glob("*/agent.yaml"))


def is_script(name: str) -> bool:
    """Says whether the name of an agent is the path of a start script; otherwise it is an id."""
    return "/" in name or name.endswith(".sh")


def find_agent(name: str, root: Path) -> Agent:
    """Returns an agent, given its id or the path of a start script.

    A start script is any script that bash can run, such as the reference's start.sh.

    Raises:
        UsageError: There is no agent with this id, or no script at this path.
        TaskDefinitionError: The agent's agent.yaml is not valid.
        IntegrityError: It is not a text in UTF-8.
    """
    if is_script(name):
        if not Path(name).is_file():
            raise UsageError(
                f"no agent script {name}: --agent takes an id (see `a2rl agents`) or the path of a start script"
            )
        return _script_agent(Path(name))
    known = agent_ids(root)
    if name not in known:
        raise unknown_name("agent", name, known)
    folder = root / "agents" / name
    try:
        return Agent(**{"id": name, **read_yaml(folder / "agent.yaml"), "folder": folder})
    except UsageError as error:
        raise TaskDefinitionError(str(error).removeprefix(f"{root}/")) from error
    except ValidationError as error:
        raise TaskDefinitionError(f"agents/{name}/agent.yaml: {validation_message(error)}") from error
    except (TypeError, ValueError) as error:
        raise TaskDefinitionError(f"agents/{name}/agent.yaml: {' '.join(str(error).split())}") from error


def recorded_agent(name: str, root: Path) -> Agent:
    """Returns the agent of a run that need not start again; its start script may be gone.

    Raises:
        UsageError: There is no agent with this id.
        TaskDefinitionError: The agent's agent.yaml is not valid.
        IntegrityError: It is not a text in UTF-8.
    """
    return _script_agent(Path(name)) if is_script(name) else find_agent(name, root)


def _script_agent(script: Path) -> Agent:
    script = script.resolve()
    literal = str(script).replace("{", "{{").replace("}", "}}")  # a path is no template
    return Agent(id=script.parent.name or script.stem, title=str(script), start=("bash", literal), folder=script.parent)
