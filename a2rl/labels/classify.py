"""Labels the code of a program with its route: which ways of training it runs, in which order."""

from collections.abc import Mapping, Sequence

from a2rl.labels.commands import Started, lines_of, started
from a2rl.labels.machine import OutOfFuelError, Phase
from a2rl.labels.program import Program
from a2rl.labels.routes import Chain, Evidence, Route, RouteLabel
from a2rl.labels.statements import Interpreter
from a2rl.labels.values import WEIGHTS

UNKNOWN = RouteLabel(route="unknown", confidence=0.5)
TRAINS: tuple[Route, ...] = ("SFT", "DPO", "GRPO", "PPO", "online RL", "rejection sampling")
MAX_SCRIPTS = 30
COMMAND = 20
"""The work of following a command, in steps."""
ENVIRON = {
    "MODEL_PATH": "models/base", "DATA_PATH": "data", "OUTPUT_DIR": "output", "WORKSPACE": ".",
    "GRADING_SERVER_URL": "http://127.0.0.1",
}  # fmt: skip
"""Variables that every agent has, with values that stand for the real ones."""


class Reader:
    """Runs a program abstractly, from its command lines or else from its files."""

    def __init__(self, program: Program, environ: Mapping[str, str]) -> None:
        self.machine = Interpreter(program, environ)
        self.program = program
        self.opaque = False
        self._shells: list[str] = []

    def read(self, commands: Sequence[Sequence[str]]) -> list[Phase]:
        """Returns the phases in order.

        Args:
            commands: The command lines of its processes; if there are none, the files say what is run.
        """
        try:
            if commands:
                for place, words in enumerate(commands):
                    self._run(started(words, self.program.files), (place,))
            elif self.program.scripts:
                for path in self._outermost_scripts():
                    self._script(path, (hash(path),))
            else:
                for path in self._programs():
                    self.machine.run_file(path)
                    self._commands((hash(path),))
        except OutOfFuelError:
            self.opaque = True
        except Exception:  # noqa: BLE001 - the programs are hostile: one that cannot be followed is unknown
            self.opaque = True
            return []
        return self.machine.phases

    def _programs(self) -> list[str]:
        """Returns the Python files that no other one imports."""
        found = [path for path in self.program.modules if path not in self.program.imported]
        return [path for path in found if not path.endswith("__init__.py")][:MAX_SCRIPTS]

    def _outermost_scripts(self) -> list[str]:
        names = [path.rpartition("/")[2] for path in self.program.scripts]
        texts = {path: self.program.files[path] for path in self.program.scripts}
        inner = {
            path
            for path, name in zip(self.program.scripts, names, strict=True)
            if any(name in text for other, text in texts.items() if other != path)
        }
        return [path for path in self.program.scripts if path not in inner] or self.program.scripts[:1]

    def _script(self, path: str, calls: tuple[int, ...]) -> None:
        if path in self._shells or len(self._shells) > MAX_SCRIPTS:
            return
        self._shells.append(path)
        for place, words in enumerate(lines_of(self.program.files[path])):
            self._run(started(words, self.program.files), (*calls, place), path)
        self._shells.remove(path)

    def _run(self, what: Started, calls: tuple[int, ...], file: str = "") -> None:
        self.machine.burn(COMMAND)
        self.opaque = self.opaque or what.opaque
        if what.route is not None:
            self.machine.phases.append(Phase(what.route, 0.9, what.why, file, 0, calls))
        elif what.script:
            path = self.program.file(what.script)
            if path is None:
                return
            self.machine.run_file(path, what.arguments, calls)
            self._commands(calls)
        elif what.shell.startswith("\n"):
            for place, words in enumerate(lines_of(what.shell)):
                self._run(started(words, self.program.files), (*calls, place), file)
        elif what.shell and (path := self.program.file(what.shell)) is not None:
            self._script(path, calls)

    def _commands(self, calls: tuple[int, ...]) -> None:
        """Follows the commands that a program has started."""
        waiting, self.machine.commands = self.machine.commands, []
        for place, words in enumerate(waiting):
            what = started(words, self.program.files)
            if not (what.route or what.script or what.shell):
                self.opaque = True
            self._run(what, (*calls, -1 - place))


def classify(
    files: Mapping[str, str],
    commands: Sequence[Sequence[str]] = (),
    environ: Mapping[str, str] | None = None,
    commit: str = "",
) -> Chain:
    """Returns the route of a program.

    Args:
        files: Its files: text by path.
        commands: The command lines with which it was started, if they are known.
        environ: Environment variables that it was started with, as far as they are known.
        commit: The commit of the files, for the evidence.
    """
    reader = Reader(Program(files), {**ENVIRON, **(environ or {})})
    phases = reader.read(commands)
    if reader.machine.optimizer_steps == 0:
        phases = [phase for phase in phases if not phase.is_loop]
    chain = _without_repeats(phases)
    if chain:
        return tuple(_label(group, commit) for group in chain)
    return (_without_training(reader, commit),)


def _without_repeats(phases: Sequence[Phase]) -> list[list[Phase]]:
    """Groups neighbours of one route. Losses of an unknown kind do not count beside known ones."""
    known = [phase for phase in phases if phase.route != "unknown"]
    groups: list[list[Phase]] = []
    for phase in known or phases:
        if groups and groups[-1][0].route == phase.route:
            groups[-1].append(phase)
        else:
            groups.append([phase])
    return [group for group in groups if group[0].route in TRAINS or group[0].route in {"merge", "unknown"}] or groups


def _label(group: Sequence[Phase], commit: str) -> RouteLabel:
    evidence = tuple(
        Evidence(source="code", what=phase.why, commit=commit, file=phase.file, line=phase.line) for phase in group[:5]
    )
    return RouteLabel(route=group[0].route, confidence=max(phase.confidence for phase in group), evidence=evidence)


def _without_training(reader: Reader, commit: str) -> RouteLabel:
    """Returns the label of a program in which no training was found: a copy if it saves a model all the same."""
    saves = [each for each in reader.machine.saves if not any(mark.startswith(WEIGHTS) for mark in each[3])]
    if saves and not reader.opaque:
        what, file, line, _ = saves[0]
        evidence = Evidence(source="code", what=f"{what}() without any training", commit=commit, file=file, line=line)
        return RouteLabel(route="copy", confidence=0.8, evidence=(evidence,))
    return UNKNOWN
