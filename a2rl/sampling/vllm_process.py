"""The process of a vLLM worker, and the connection to it.

The process that starts the worker owns it and ends it. A fork of that process may talk to the worker over the
connection: so a worker can serve several graders, one after the other, each in a process of its own.
"""

import json
import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal, Self

from a2rl.core.errors import InfrastructureError, UnclearFaultError, UsageError, last_words
from a2rl.core.files import StrictModel
from a2rl.core.processes import Child
from a2rl.core.settings import Settings
from a2rl.sampling.engine_params import Dtype, EngineMemory, VllmParams

WORKER = Path(__file__).with_name("vllm_worker.py")
CLOSE_TIMEOUT_S = 10
LOG_TAIL_LINES, LOG_TAIL_BYTES = 25, 1 << 16
SILENCE_S = 120.0
"""A worker that is silent for so long (it reports every few seconds) is stuck."""
BLOCK = 1 << 16

Json = dict[str, Any]


class EngineLostError(UnclearFaultError):
    """The worker has died or is stuck."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why
        """What is known about it besides its log."""


class WeightsRejectedError(EngineLostError):
    """The engine did not take other weights, or it cannot be shown that it did. It must not be used any more."""


class EngineMemoryError(InfrastructureError):
    """The device has too little free memory. An engine that found this before it took any goes on resting."""


class EngineStart(StrictModel):
    """How an engine got the weights of a checkpoint; recorded with the grade."""

    kind: Literal["cold", "warm"]
    """`warm`: a running engine took the weights, and every one was compared with the files."""
    why: str
    """Why it was started anew, or what was verified."""
    seconds: float = 0.0
    """From the request until the engine could generate."""


class EngineConnection:
    """The pipes to and from a worker."""

    def __init__(self, requests: int, answers: int, log: Path, log_start: int) -> None:
        self._requests, self._answers = requests, answers
        self._log, self._log_start = log, log_start
        self._said = b""

    def send(self, request: Json) -> None:
        """Sends one request. Raises EngineLostError."""
        unsent = json.dumps(request).encode() + b"\n"
        try:
            while unsent:
                unsent = unsent[os.write(self._requests, unsent) :]
        except OSError as error:  # the worker has died, or the sampler was closed
            raise self.lost() from error

    def receive(self) -> Json:
        """Returns the next answer.

        Raises:
            UsageError: The request was wrong.
            InfrastructureError: This machine cannot do what was asked for.
            EngineMemoryError: The device has too little free memory.
            EngineLostError: The worker has died or is stuck.
        """
        while True:
            line = self._line()
            if not line.endswith(b"\n"):  # also one that broke off
                raise self.lost()
            answer: Json = json.loads(line)
            if "error" in answer:
                raise UsageError(answer["error"])
            if "machine" in answer:
                raise InfrastructureError(answer["machine"])
            if "memory" in answer:
                raise EngineMemoryError(answer["memory"])
            if "alive" not in answer:
                return answer

    def load(self, model: Path) -> Json:
        """Makes the engine take the weights of another checkpoint, and returns the worker's answer.

        What the worker still had to say to someone else is dropped: the answer repeats a number that only it can know.

        Raises:
            WeightsRejectedError: It did not take them.
            EngineMemoryError: The device has too little free memory.
            EngineLostError: The worker has died or is stuck.
        """
        nonce = secrets.token_hex(16)
        self.send({"load": str(model.resolve()), "nonce": nonce})
        while True:
            line = self._line()
            if not line.endswith(b"\n"):
                raise self.lost()
            try:
                answer = json.loads(line)
            except ValueError:  # the end of a line that someone else began to read
                continue
            if isinstance(answer, dict) and answer.get("loaded", nonce if "memory" in answer else "") == nonce:
                break
        if "memory" in answer:
            raise EngineMemoryError(answer["memory"])
        if answer["problem"]:
            raise WeightsRejectedError(f"the vLLM worker could not take other weights: {answer['problem']}")
        return answer

    def rest(self) -> None:
        """Tells the worker that nothing is to be generated for now."""
        with suppress(EngineLostError):  # found out at the next request
            self.send({"rest": True})

    def lost(self, why: str = "", ended: str = "") -> EngineLostError:
        """Returns the error for a lost worker, with the end of its log as a note.

        Args:
            why: What is known about it; otherwise, what its log ends with is shown.
            ended: How it ended, if that is known.
        """
        end = self._end_of_log()
        last = why or last_words(end, "it wrote nothing")
        error = EngineLostError(f"the vLLM worker ended{ended}: {last}; log: {self._log}", why)
        error.add_note("\n".join(end.splitlines()[-LOG_TAIL_LINES:]))
        return error

    def _end_of_log(self) -> str:
        try:
            with self._log.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, end - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def _line(self) -> bytes:
        """The next line, or what there is of it at the end."""
        while b"\n" not in self._said:
            try:
                if not connection.wait([self._answers], SILENCE_S):
                    raise self.lost(f"it gave no sign of life for {SILENCE_S:.0f} s")
                block = os.read(self._answers, BLOCK)
            except (OSError, ValueError) as error:  # the sampler was closed
                raise self.lost("it was closed after an earlier failure") from error
            if not block:
                return self._said
            self._said += block
        line, _, self._said = self._said.partition(b"\n")
        return line + b"\n"


@dataclass(frozen=True, slots=True)
class EngineLease:
    """A worker that someone else owns, lent for one grade."""

    connection: EngineConnection
    is_warm: bool
    """Whether the worker has generated before, and must be told which weights to take."""
    why: str
    """Why it is not warm."""


class EngineProcess:
    """A worker that this process has started."""

    def __init__(self, process: Child, log: Path, log_start: int) -> None:
        self._process, self._log = process, log
        self.connection = EngineConnection(process.requests.fileno(), process.answers.fileno(), log, log_start)

    @classmethod
    def start(
        cls,
        model: Path,
        exact: bool,
        dtype: Dtype | None,
        params: VllmParams | None,
        memory: EngineMemory | None = None,
        log: Path | None = None,
    ) -> Self:
        """Starts a worker on a model folder; it is ready when it has sent its first answer.

        Args:
            model: The folder.
            exact: See `open_sampler`.
            dtype: What it computes in.
            params: The options of vLLM.
            memory: What it takes of a GPU's memory.
            log: The file to which the worker's output is added; a temporary one unless given.

        Raises:
            InfrastructureError: vLLM is not installed.
        """
        settings = Settings.load()
        python = settings.vllm_python
        if not python.is_file():
            raise InfrastructureError("vLLM is not installed: run `scripts/setup_environment.sh vllm`")
        log = log or _temporary_log()
        log_start = log.stat().st_size if log.exists() else 0
        # -I: neither PYTHONPATH nor the current folder may add modules to vLLM's environment.
        command: list[str | Path] = [
            python,
            "-I",
            WORKER,
            model.resolve(),
            json.dumps(engine_request(exact, dtype, params, memory)),
        ]
        return cls(Child(command, _worker_environment(settings), log=log, answers=True), log, log_start)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the worker has not ended."""
        return self._process.is_alive

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> str:
        """Ends the worker, if necessary by force. A temporary log is kept only if it failed.

        Returns:
            How it ended, as a phrase in parentheses.
        """
        code = self._process.end_group(timeout_s)
        if code == 0 and self._log.name.startswith(TEMPORARY):
            self._log.unlink(missing_ok=True)
        return f" (exit code {code})"


TEMPORARY = "a2rl-vllm-"


def engine_request(
    exact: bool, dtype: Dtype | None, params: VllmParams | None, memory: EngineMemory | None = None
) -> Json:
    """Returns what a worker is told about its engine when it starts."""
    planned = memory.request() if memory else {"engine": {}}
    options = (params or VllmParams()).engine_options() | ({"dtype": dtype} if dtype else {})
    return {**planned, "exact": exact, "engine": options | planned["engine"]}


def _temporary_log() -> Path:
    descriptor, log = tempfile.mkstemp(prefix=TEMPORARY, suffix=".log")
    os.close(descriptor)
    return Path(log)


def _worker_environment(settings: Settings) -> dict[str, str]:
    return {
        **{name: value for name, value in settings.environ.items() if name not in Settings.handed_over()},
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # OpenMP threads that spin at their barriers slow down twentyfold when another process wants the same cores.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
