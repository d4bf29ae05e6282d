"""Keeps one engine of vLLM between the grades of a device, since starting one takes much longer than other weights do.

    with KeptEngine() as kept:
        lease = kept.lease(job)      # for the process that grades the job
        ...                          # that process ends
        kept.give_back(lease)        # or kept.give_up(lease, why), and the job may be tried once more

Only the weights may differ from one checkpoint to the next: the engine is started anew for another configuration,
another tokenizer or other options. An engine that takes other weights compares every one of them with the files.
"""

from contextlib import suppress
from types import TracebackType

from a2rl.core.errors import A2rlError
from a2rl.core.files import digest_of, file_digest
from a2rl.grading.job import GradeJob
from a2rl.models.checkpoint import INDEX
from a2rl.sampling.engine_params import VllmParams
from a2rl.sampling.vllm_process import EngineLease, EngineProcess, engine_request

MAX_REJECTIONS = 2
"""After an engine has rejected other weights so often, engines of its kind are not kept."""
FIRST, OTHER, DIED = (
    "it is the first grade on this device",
    "the engine before it was for another configuration",
    "the engine before it had ended",
)


class KeptEngine:
    """The engine of one device; none before the first job that needs one."""

    def __init__(self) -> None:
        self._engine: EngineProcess | None = None
        self._kind = ""
        self._why = FIRST
        self._rejections: dict[str, int] = {}

    def lease(self, job: GradeJob) -> EngineLease | None:
        """Returns a lease of the kept engine, or of a new one.

        Returns:
            None if the job's own process has to start an engine, or to say why it cannot: with another back end, with
            several GPUs for one model, or where vLLM is missing.
        """
        if job.backend != "vllm" or (job.vllm or VllmParams()).tensor_parallel_size > 1:
            return None
        try:
            kind = kind_of(job)
        except OSError:
            return None
        if self._rejections.get(kind, 0) >= MAX_REJECTIONS:
            self.close()
            return None
        if self._engine is not None and self._engine.is_alive and kind == self._kind:
            return EngineLease(self._engine.connection, is_warm=True, why="")
        if self._engine is not None:
            self._why = OTHER if self._engine.is_alive else DIED
            self.close()
        return self._start(job, kind)

    def _start(self, job: GradeJob, kind: str) -> EngineLease | None:
        with suppress(OSError, A2rlError):  # the job's own process meets the same problem, and reports it
            job.log.parent.mkdir(parents=True, exist_ok=True)
            log = job.log.with_name("vllm.log")
            self._engine = EngineProcess.start(job.model, job.exact, job.dtype, job.vllm, job.memory, log)
            self._kind = kind
            return EngineLease(self._engine.connection, is_warm=False, why=self._why)
        return None

    def give_back(self, lease: EngineLease | None) -> None:
        """Ends a lease; the engine rests until the next."""
        if lease is not None:
            lease.connection.rest()

    def give_up(self, lease: EngineLease | None, why: str, *, is_rejection: bool = False) -> None:
        """Ends a lease and the engine.

        Args:
            lease: The lease.
            why: What is wrong with the engine.
            is_rejection: Whether it did not take the weights that it was given.
        """
        if lease is None:
            return
        if is_rejection:
            self._rejections[self._kind] = self._rejections.get(self._kind, 0) + 1
        self._why = f"the engine before it was given up: {why}"
        self.close()

    def close(self) -> None:
        """Ends the engine."""
        if self._engine is not None:
            self._engine.close(timeout_s=0)
            self._engine = None

    def __enter__(self) -> "KeptEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def kind_of(job: GradeJob) -> str:
    """Returns the digest of everything that an engine depends on, except for the weights.

    Raises:
        OSError: The folder of the model cannot be read.
    """
    names = sorted(path.name for path in job.model.iterdir() if path.is_file())
    others = [name for name in names if not name.endswith(".safetensors") and name != INDEX]
    files = {name: file_digest(job.model / name) for name in others}
    return digest_of({"files": files, **engine_request(job.exact, job.dtype, job.vllm, job.memory)})
