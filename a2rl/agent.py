"""An agent system as its `agents/<id>/agent.yaml` describes it: how it is installed, started, resumed and understood.

Text in `start`, `resume`, `turn_limit`, `env` and `files` may hold these names in braces; a brace that
is meant is doubled. `{program}` is the installed program, `{agent_dir}` the definition's folder, `{workspace}` and
`{home}` where it works, `{prompt}` what it is told, `{driver}` and `{base_url}` the LLM and where its API is,
`{max_turns}` the limit on turns, `{session}` the session to go on with, `{attempt}` the number of this start.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Name = Literal[
    "program", "agent_dir", "workspace", "home", "prompt", "driver", "base_url", "max_turns", "session", "attempt"
]
STDOUT = "stdout"
NAMES: tuple[Name, ...] = Name.__args__  # type: ignore[attr-defined]


def _known_names(text: str) -> str:
    try:
        text.format(**dict.fromkeys(NAMES, ""))
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"in braces only {', '.join(NAMES)} may stand (a meant brace is doubled)") from error
    return text


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Text = Annotated[str, AfterValidator(_known_names)]
OneOrMore = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Install(_Section):
    """Packages at pinned versions, from one of the two registries."""

    npm: OneOrMore = ()
    """As in `@openai/codex@0.169.0`; the first one is the agent system itself."""
    pip: OneOrMore = ()
    """As in `mini-swe-agent==2.4.6`; they get a virtual environment of their own."""
    python: Annotated[str, Field(pattern=r"^3\.\d+$")] | None = None
    """The oldest Python that the pip packages take, as in `3.12`; unless given, the one of a2rl does."""
    lock: str | None = None
    """A file beside agent.yaml: the versions of all that the pip packages need, where pip would search for long."""

    @property
    def pins(self) -> tuple[str, ...]:
        return self.npm + self.pip


class TranscriptSource(_Section):
    """Where an agent system writes down what it does."""

    format: str
    """A module of a2rl/transcripts."""
    sources: OneOrMore = Field(default=(STDOUT,), alias="from")
    """stdout, or patterns of files below its HOME; files are read first."""

    @property
    def is_printed(self) -> bool:
        """Whether what the agent prints is its transcript, or part of it."""
        return STDOUT in self.sources

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(source for source in self.sources if source != STDOUT)


class Agent(_Section):
    """An agent system: `agents/<id>/agent.yaml`, or a start script of one's own."""

    id: str
    title: str
    start: tuple[Text, ...]
    """Command line. It runs in the workspace."""
    resume: tuple[Text, ...] = ()
    """Command line that goes on with a session; without it a resumed run starts anew, with a summary."""
    turn_limit: tuple[Text, ...] = ()
    """What is added to the command line where the run limits the turns."""
    install: Install | None = None
    program: str | None = None
    """The executable that the installation brings."""
    driver: str | None = None
    """The LLM that drives it, unless the run names another."""
    base_url: str | None = None
    """Where the LLM's API is, unless the run names another place."""
    env: dict[str, Text] = {}
    """Plain settings, set in its environment."""
    files: dict[str, Text] = {}
    """Files below its HOME, written before each start."""
    forward_env: tuple[str, ...] = ()
    """Names of the user's variables (API keys) that it gets; nothing else of the user's environment reaches it."""
    needs_one_of: tuple[str, ...] = ()
    """Of those, the ones without which it cannot work, at the default base_url; any of them will do."""
    hosts: tuple[str, ...] = ()
    """Hosts that it may reach, through a proxy that logs."""
    transcript: TranscriptSource | None = None
    messages: Literal["claude-code"] | None = None
    """The form in which it takes its prompt, and messages while it works, on its standard input; None: it does not."""
    exits: dict[int, str] = {}
    """What its exit codes mean, in plain words."""
    prompt_note: str = ""
    """What this agent system must be told beyond the common prompt."""
    folder: Path = Path()
    """Where the definition lies; filled in by the loader."""

    @property
    def calls_llm(self) -> bool:
        """Whether an LLM drives it."""
        return self.base_url is not None

    @property
    def takes_base_url(self) -> bool:
        """Whether it goes where it is told for its LLM, so that what it asks there can be seen on the way."""
        texts = (*self.start, *self.resume, *self.env.values(), *self.files.values())
        return any("{base_url}" in text for text in texts)

    def command(self, names: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """The command line of a first start. Names that are not given stay empty, but for its own folder."""
        return self._filled(self.start, names)

    def resume_command(self, names: Mapping[str, str]) -> list[str]:
        """The command line that goes on with `names["session"]`."""
        return self._filled(self.resume, names)

    def _filled(self, parts: tuple[str, ...], names: Mapping[str, str]) -> list[str]:
        known: dict[str, str] = dict.fromkeys(NAMES, "")
        known |= {"agent_dir": str(self.folder), **names}
        limit = self.turn_limit if known["max_turns"] else ()
        return [part.format(**known) for part in (*parts, *limit)]
