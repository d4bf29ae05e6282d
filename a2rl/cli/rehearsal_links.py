"""The links of a rehearsal, made of what real runs use. Each group runs in a process of its own, started by
`a2rl.cli.rehearse` as `python -m a2rl.cli.rehearsal_links GROUP PLAN`, and writes a row for each link as soon as it
ends.

A link that fails never stops the others, unless they need what it makes.
"""

import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from a2rl.agent_systems.definition import agent_ids, find_agent
from a2rl.agent_systems.installation import Installation
from a2rl.config.params import load_params
from a2rl.config.provision import provision_of
from a2rl.core.errors import A2rlError, InfrastructureError, IntegrityError, RunFailedError, UsageError
from a2rl.core.files import FrozenModel, StrictModel, machine_failure, read_model
from a2rl.core.processes import Child, child_environment
from a2rl.core.secrets import scrub
from a2rl.core.settings import Settings
from a2rl.execution.preflight import CHECKS, examine_runs
from a2rl.execution.preflight_probes import vllm_build
from a2rl.execution.workspace import gpu_variables
from a2rl.linux.gpus import CPU, Gpu, driver_nodes, usable_gpus
from a2rl.linux.resources import GIB
from a2rl.models.base_model import local_folder, resolve_model
from a2rl.run.directory import RunDir, new_run_id
from a2rl.run.disk import MARGIN, format_bytes, weights_bytes
from a2rl.run.gpu_share import wants_no_gpu
from a2rl.run.records import STAGES, GradeRecord
from a2rl.run.spec import RunSpec
from a2rl.sandbox.selection import select_sandbox, try_in_sandbox
from a2rl.task_api.catalog import load_task, task_ids

Outcome = Literal["pass", "fail", "skipped"]
Found = Callable[[str], None]
SUITE = "rehearsal"
MLFLOW = "MLflow shows what the ledger says"
ITEMS, ANSWER_TOKENS = 8, 48
"""What both back ends answer, and the most tokens of an answer."""
ALIKE = 16
"""Texts of the two back ends count as alike if they begin with the same characters: later, ties may be rounded either
way."""
TOGETHER_S = 150.0
"""How long processes that work together may take to find each other."""
TOGETHER = """
import os, sys
import torch
backend, device = sys.argv[1], "cpu"
if backend == "nccl":
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
torch.distributed.init_process_group(backend)
total = torch.ones(1, device=device)
torch.distributed.all_reduce(total)
assert total.item() == torch.distributed.get_world_size()
torch.distributed.destroy_process_group()
"""
DEEPSPEED = """
import importlib.util, sys
if importlib.util.find_spec("deepspeed") is None:
    sys.exit(3)
import deepspeed
print("DeepSpeed", deepspeed.__version__)
"""
PYTHON = "PYTHON"
"""Stands in a command for the agent's Python."""
NOT_INSTALLED = 3
BY_WHAT = {check.what: check for check in CHECKS}
CHURN = """
import os, random, sys, threading, time
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
import torch
most = max(0, torch.cuda.mem_get_info()[0] - int(sys.argv[1]))
for count in range(1, 1 << 30):
    try:
        block = torch.empty(int(random.random() * most), dtype=torch.uint8, device="cuda")
        time.sleep(random.random() / 4)
        del block
    except torch.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()
    print(count, flush=True)
"""
"""Allocates and frees memory of a GPU as long as its input is open, and leaves as much as it is told."""


class Row(FrozenModel):
    """A link of the table."""

    link: str
    result: Outcome
    seconds: float
    found: str
    """What it found, or why it failed or was skipped and what to do about it."""


class Plan(StrictModel):
    """What a group is told."""

    spec: RunSpec
    """The run that the user has in mind."""
    rows: Path
    scratch: Path
    """A folder for checkpoints, on the disk of the runs. It is removed after the group."""
    kept: Path
    """A folder for logs."""


class SkippedError(A2rlError):
    """A link cannot be tried here, or need not be."""


class Rehearsal:
    """What the links of one group share."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self.plan, self.spec, self.settings = plan, plan.spec, settings

    @contextmanager
    def link(self, name: str) -> Iterator[Found]:
        """Writes the row of a link, whatever happens in the context.

        Yields:
            A function to call with what is found.
        """
        self.write(Row(link=name, result="fail", seconds=0, found=""))
        began, found = time.monotonic(), list[str]()
        result: Outcome = "pass"
        try:
            yield found.append
        except SkippedError as why:
            result, found = "skipped", [str(why)]
        except A2rlError as error:
            result, found = "fail", [str(error)]
        except Exception as error:  # noqa: BLE001 - whatever breaks here is what the rehearsal is for
            traceback.print_exc()
            result, found = "fail", [f"{type(error).__name__}: {error}; the log has more"]
        self.write(Row(link=name, result=result, seconds=time.monotonic() - began, found="; ".join(found)))

    def write(self, row: Row) -> None:
        """Adds a row; a row that replaces an earlier one of the same name comes later."""
        with self.plan.rows.open("a", encoding="utf-8") as file:
            file.write(scrub(row.model_dump_json()) + "\n")

    def gpus(self) -> Sequence[Gpu]:
        """Returns the GPUs that the run may use."""
        return () if wants_no_gpu(self.spec) else usable_gpus(self.settings).gpus


def checks(here: Rehearsal) -> None:
    """Makes the checks of `a2rl run`, then those of agents and judges that are here as well."""
    spec, settings = here.spec, here.settings
    for what in BY_WHAT:
        if what != "disk":
            _check(here, what, spec)
    for agent in (find_agent(each, settings.root) for each in agent_ids(settings.root)):
        installation, other = Installation(agent, settings), spec.model_copy(update={"agent": agent.id})
        if not installation.is_needed or agent.id == spec.agent:
            continue
        if missing := installation.missing_program():
            here.write(Row(link=f"agent {agent.id}", result="skipped", seconds=0, found=missing))
            continue
        _check(here, "agent", other, f"agent {agent.id}")
        _check(here, "API key", other, f"API key of {agent.id}", is_needed=False)
    params = load_params(settings.root)
    for task in (load_task(each, settings.root) for each in task_ids(settings.root)):
        if "full" in task.judged and task.id != spec.task:
            options = task.choose(params.grading.options.get(task.id, {}))
            judge = params.judge_for(task, "full")
            judged = spec.model_copy(update={"task": task.id, "variant": "full", "options": options, "judge": judge})
            for what in ("judge", "search", "judge answers", "search answers"):
                _check(here, what, judged, f"{what} ({task.id})", is_needed=what.endswith("answers"))


def _check(here: Rehearsal, what: str, spec: RunSpec, name: str = "", is_needed: bool = True) -> bool:
    """Makes a check for a run, writes its row, and returns whether there is no problem."""
    began = time.monotonic()
    try:
        made = examine_runs([spec], here.settings, lambda check: check.what == what)
        results = [(each.found, each.problem) for each in made]
    except Exception as error:  # noqa: BLE001 - whatever breaks here is what the rehearsal is for
        traceback.print_exc()
        results = [("", f"{type(error).__name__}: {error}; the log has more")]
    for found, problem in results:
        outcome: Outcome = "pass" if not problem else "fail" if is_needed else "skipped"
        seconds = time.monotonic() - began
        here.write(Row(link=name or what, result=outcome, seconds=seconds, found=problem or found))
    return not any(problem for _, problem in results)


def model(here: Rehearsal) -> None:
    """Downloads the base model unless it is here, reads its weights, and tries whether a copy can be submitted."""
    from a2rl.grading.base_trial import try_base_model
    from a2rl.models.base_model import model_digest
    from a2rl.models.finite import require_finite_weights

    has_room, folder = _check(here, "disk", here.spec), local_folder(here.spec.model, here.settings)
    with here.link("weights") as found:
        if not has_room and not (folder and folder.is_dir()):
            raise SkippedError("they are not here, and there is no room for them")
        folder, began = resolve_model(here.spec.model, here.settings), time.monotonic()
        require_finite_weights(folder)
        size = weights_bytes(folder)
        found(f"{format_bytes(size)} in {folder}, read and checked at {_speed(size, began)}")
    with here.link("base trial") as found:
        if folder is None or not folder.is_dir():
            raise SkippedError("there is no base model")
        folder = resolve_model(here.spec.model, here.settings)
        if not_tried := try_base_model(folder, model_digest(folder), here.settings).not_tried:
            raise SkippedError(not_tried)
        found("a copy that transformers saves can be submitted")


def copy(here: Rehearsal) -> None:
    """Saves a checkpoint of the real size, and copies it as the grader copies a submission."""
    from a2rl.grading.submitted_files import Source, SubmittedFiles

    workspace, target = here.plan.scratch / "workspace", here.plan.scratch / "submission"
    with here.link("checkpoint saved") as found:
        folder = resolve_model(here.spec.model, here.settings)
        size, free = weights_bytes(folder), shutil.disk_usage(here.plan.scratch).free
        if 2 * size + MARGIN > free:
            raise UsageError(
                f"two checkpoints take {format_bytes(2 * size)}, and {format_bytes(free)} are free for runs/: free "
                "some space, or make runs/ a link to a larger disk"
            )
        began = time.monotonic()
        _copied(folder, workspace / "saved")
        found(f"{format_bytes(size)} at {_speed(size, began)}")
    with here.link("copy of a submission") as found, SubmittedFiles(Source(workspace, "saved")) as files:
        target.mkdir()
        size, began = weights_bytes(workspace / "saved"), time.monotonic()
        try:
            files.copy(target)
        except OSError as error:
            raise machine_failure("copy a submission", error) from error
        found(f"{format_bytes(size)} read, hashed and written at {_speed(size, began)}")


def _copied(folder: Path, target: Path) -> Path:
    try:
        return shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.gguf", "*.bin", "*.pth"))
    except (OSError, shutil.Error) as error:
        cause = error if error.errno else OSError(str(error))
        raise machine_failure("save a checkpoint", cause) from error


def _speed(size: int, began: float) -> str:
    return f"{format_bytes(size / max(1e-3, time.monotonic() - began))}/s"


def grades(here: Rehearsal) -> None:
    """Answers some items with both back ends, and with other weights in a running engine of vLLM."""
    from a2rl.grading.devices import held_device

    with held_device(here.spec.model, here.settings, here.spec.gpus_for_one) as device:
        grading = _Grading(here, device)
        expected = grading.with_transformers()
        if here.spec.backend != "vllm":
            with here.link("vLLM"):
                why = "it is installed, and --backend transformers was asked for" if vllm_build(here.settings) else ""
                raise SkippedError(why or "vLLM is not installed: run `make setup-vllm`, or set A2RL_VLLM_PYTHON")
        with here.link("memory of the GPU") as found:
            found(grading.free_memory())
        works = grading.with_vllm(expected) if here.spec.backend == "vllm" else bool(expected)
        if device != CPU:
            grading.beside_others(works)


class _Grading:
    """The grades of a rehearsal, on one device."""

    def __init__(self, here: Rehearsal, device: str) -> None:
        from a2rl.task_api.data import ensure_data

        spec, settings = here.spec, here.settings
        self.here, self.device, self._number = here, device, 0
        self.folder = resolve_model(spec.model, settings)
        source = Path(spec.source) if spec.source else None
        self.hidden = ensure_data(spec.task, spec.variant, source, settings) / "hidden"

    def job(self, backend: Literal["transformers", "vllm"], folder: Path | None = None) -> Any:
        """Returns a job that grades a folder on the device; on a processor in float32, where texts can be equal."""
        from a2rl.grading.devices import planned_for
        from a2rl.grading.job import EngineChoice, GradeJob

        spec, self._number = self.here.spec, self._number + 1
        dtype = spec.dtype if self.device != CPU else "float32"
        engine = EngineChoice.of(backend, dtype, spec.vllm, self.folder)
        job = GradeJob(
            root=self.here.settings.root, task=spec.task, variant=spec.variant, hidden=self.hidden,
            model=folder or self.folder, split="all", split_seed=spec.split_seed, limit=ITEMS,
            backend=engine.backend, dtype=engine.dtype, vllm=engine.vllm, exact=spec.exact,
            generation=spec.generation.model_copy(update={"max_new_tokens": ANSWER_TOKENS}), options=spec.options,
            judge=spec.judge, result=self.here.plan.scratch / f"grade-{self._number}.json",
            log=self.here.plan.kept / "grader.log", memory_wait_s=20,
        )  # fmt: skip
        return planned_for(self.device, job, self.folder)

    @contextmanager
    def pool(self) -> Iterator[Callable[[Any], tuple[Any, list[str]]]]:
        """Yields a function that runs a job, and returns its result and the texts, in the order of the items."""
        from a2rl.grading.pool import GraderPool
        from a2rl.results.outputs import graded_outputs

        with GraderPool(self.here.settings, [self.device]) as pool:

            def answers(job: Any) -> tuple[Any, list[str]]:
                result = pool.submit(job).result()
                texts = {each.item: "".join(turn.answer for turn in each.turns) for each in graded_outputs(job.result)}
                return result, [texts[item] for item in sorted(texts)]

            yield answers

    def with_transformers(self) -> list[str]:
        """Returns the texts of the items; none if that fails."""
        texts: list[str] = []
        with self.here.link("transformers") as found, self.pool() as answers:
            result, texts = answers(self.job("transformers"))
            found(f"{len(texts)} items on {self.device}, {result.score.seconds:.1f} s, in {result.dtype or 'its type'}")
        return texts

    def free_memory(self) -> str:
        """Compares what is free on the GPUs with what the grader takes."""
        gpus = [gpu for gpu in self.here.gpus() if gpu.uuid in self.device.split(",")]
        if not gpus:
            raise SkippedError("no GPU grades")
        memory = self.job(self.here.spec.backend).memory
        needed = memory.total_bytes if memory else weights_bytes(self.folder)
        for gpu in gpus:
            if gpu.free_bytes is not None and gpu.free_bytes < needed:
                raise InfrastructureError(
                    f"the grader needs {needed / GIB:.1f} GiB of GPU {gpu}, of which {gpu.free_bytes / GIB:.1f} are "
                    "free: end the programs that `nvidia-smi` lists, or choose another GPU with CUDA_VISIBLE_DEVICES"
                )
        return str(memory) if memory else f"more than the {format_bytes(needed)} of the weights are free"

    def with_vllm(self, expected: list[str]) -> bool:
        """Starts an engine, compares its texts, and gives it other weights and the first ones again.

        Returns:
            Whether the engine could be started.
        """
        texts: list[str] = []
        with self.pool() as answers:
            with self.here.link("vLLM, cold start") as found:
                result, texts = answers(self.job("vllm"))
                found(f"{result.engine_start.seconds:.1f} s until it answers, {result.score.seconds:.1f} s in all")
            if not texts:
                return False
            with self.here.link("texts of both back ends") as found:
                found(compared(expected, texts))
            with self.here.link("vLLM, new weights") as found:
                if self.here.spec.gpus_for_one > 1:
                    raise SkippedError("an engine on several GPUs is not kept")
                result, other = answers(self.job("vllm", self._changed()))
                again, texts_again = answers(self.job("vllm"))
                for start in (result.engine_start, again.engine_start):
                    if start.kind != "warm":
                        raise InfrastructureError(f"the engine did not take them: {start.why}; the log has more")
                if texts_again != texts:
                    raise InfrastructureError("after other weights and the first ones again, its texts are others")
                changed = sum(one != two for one, two in zip(texts, other, strict=True))
                found(f"taken in {again.engine_start.seconds:.1f} s; {changed} of {len(texts)} texts changed and back")
            return True

    def beside_others(self, works: bool) -> None:
        """Grades with a new engine and a running one, while another process allocates and frees memory of the GPU.

        Args:
            works: Whether the back end grades on a GPU that nobody else uses.
        """
        with self.here.link("grade on a GPU in use") as found:
            if not works:
                raise SkippedError("it does not grade on a GPU that nobody else uses")
            job = self.job(self.here.spec.backend)
            leave = (job.memory.total_bytes if job.memory else 2 * weights_bytes(self.folder)) + GIB
            python = self.here.settings.vllm_python if job.backend == "vllm" else Path(sys.executable)
            log = self.here.plan.kept / "other-process.log"
            environment = {**child_environment(self.here.settings), "CUDA_VISIBLE_DEVICES": self.device.split(",")[0]}
            other = Child([python, "-I", "-c", CHURN, str(leave)], environment, log=log)
            try:
                with self.pool() as answers:
                    began = time.monotonic()
                    answers(job)
                    cold_s, began = time.monotonic() - began, time.monotonic()
                    answers(self.job(self.here.spec.backend))
                    warm_s = time.monotonic() - began
                is_alive, last = other.is_alive, (log.read_text().split() or ["0"])[-1]
            finally:
                other.end_group(5)
            if not is_alive:
                raise InfrastructureError(f"the other process ended ({last}): {log}")
            found(f"{cold_s:.1f} s and {warm_s:.1f} s, while another process took and left memory {last} times")

    def _changed(self) -> Path:
        """Returns a checkpoint with other weights."""
        from safetensors.torch import load_file, save_file

        folder = _copied(self.folder, self.here.plan.scratch / "changed")
        for path in folder.glob("*.safetensors"):
            tensors = load_file(path)
            changed = {name: each * 1.05 if each.is_floating_point() else each for name, each in tensors.items()}
            path.unlink()
            save_file(changed, path, {"format": "pt"})
        return folder


def compared(expected: list[str], texts: list[str]) -> str:
    """Compares texts of the two back ends.

    Raises:
        SkippedError: There are none of one back end.
        InfrastructureError: They have too little in common for rounding to explain it.
    """
    if not expected:
        raise SkippedError("there are none of transformers")
    same = sum(one == two for one, two in zip(expected, texts, strict=True))
    alike = sum(one[:ALIKE] == two[:ALIKE] for one, two in zip(expected, texts, strict=True))
    what = f"{same} of {len(texts)} are the same, {alike} begin alike"
    if 2 * alike < len(texts):
        raise InfrastructureError(f"{what}: the back ends differ; grade with one of them alone, and report this")
    return what


def together(here: Rehearsal) -> None:
    """Lets processes work together inside the sandbox, with the Python with which the agent trains."""
    gpus = here.gpus()
    with here.link("two processes (gloo)") as found:
        _torchrun(here, "gloo", 2)
        found("torchrun and gloo work inside the sandbox")
    with here.link("GPUs together (NCCL)") as found:
        if not gpus:
            raise SkippedError("there is no GPU")
        _torchrun(here, "nccl", min(2, len(gpus)))
        found(f"NCCL works inside the sandbox, with {min(2, len(gpus))} of {len(gpus)} GPUs")
    with here.link("DeepSpeed") as found:
        code, output = _in_sandbox(here, ["-c", DEEPSPEED])
        if code == NOT_INSTALLED:
            raise SkippedError("not installed; `make setup-agent-env` installs it where there is a GPU")
        if code != 0:
            raise UsageError(f"it cannot be imported inside the sandbox ({_last(output)}): `make setup-agent-env`")
        found(_last(output))


def _torchrun(here: Rehearsal, backend: str, count: int) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "--no-python"]
    code, output = _in_sandbox(here, [*command, PYTHON, "-c", TOGETHER, backend])
    if code != 0:
        errors = [line for line in output.splitlines() if "Error" in line or "NCCL WARN" in line]
        why = (errors or [_last(output)])[0].strip()
        raise UsageError(
            f"{count} processes of an agent cannot work together with {backend} inside the sandbox ({why}): try "
            "--sandbox bwrap; `a2rl doctor` says more about the sandbox, the log about the reason"
        )


def _in_sandbox(here: Rehearsal, arguments: list[str]) -> tuple[int | None, str]:
    """Runs the agent's Python inside the sandbox; returns how it ended and what it printed."""
    settings, gpus = here.settings, here.gpus()
    provision = provision_of(here.spec, find_agent(here.spec.agent, settings.root), settings)
    python = provision.python.executable
    isolation = select_sandbox(here.spec.sandbox, settings)
    env = {**settings.forwarded(("LD_LIBRARY_PATH",)), **gpu_variables(gpus), "NCCL_DEBUG": "WARN"}
    command = [str(python), *(each.replace(PYTHON, str(python)) for each in arguments)]
    read, nodes = (*provision.python.folders, *provision.read), driver_nodes(gpus)
    ended = try_in_sandbox(command, isolation, settings, env, read, gpus=nodes, timeout_s=TOGETHER_S)
    sys.stdout.write(ended.output + "\n")
    return ended.exit_code, ended.output


def _last(output: str) -> str:
    return (output.strip().splitlines() or ["it says nothing"])[-1]


def run(here: Rehearsal) -> None:
    """Makes a real run with the scripted agent: a few steps of SFT and of GRPO, two submissions, and its report."""
    from a2rl.cli.flow_runner import run_flow
    from a2rl.results.mlflow.tracking import Tracker
    from a2rl.results.verify import trust_of, verify_run
    from a2rl.run.owner import create_run

    created, settings = create_run(short_run(here.spec, bool(here.gpus())), here.settings), here.settings
    with here.link("run") as found:
        run_flow({"run_ids": [created.id]}, [created.id], settings)
        record = created.need("grade", GradeRecord)
        if record.failed_stage:
            raise RunFailedError(record.reason)
        found(f"{created.id}: {record.verdict}")
    for row in (*stage_rows(created), *submission_rows(created)):
        here.write(row)
    with here.link("Prefect") as found:
        if not created.record_path("setup").exists():
            raise InfrastructureError("it began no stage: the log says why; .prefect/server.log is that of its server")
        found(f"the flow ran under {settings.environ.get('PREFECT_API_URL') or 'a server of its own'}")
    with here.link("verify") as found:
        checked = {each.what: each for each in verify_run(created, Tracker(settings), trust_of(settings))}
        mlflow = checked.pop(MLFLOW)
        if problems := [each.problem for each in checked.values() if each.problem]:
            raise IntegrityError("; ".join(problems))
        found(f"{len(checked)} checks")
    with here.link("MLflow") as found:
        if mlflow.problem:
            raise InfrastructureError(mlflow.problem)
        if mlflow.not_checked:
            raise SkippedError(mlflow.not_checked)
        found(mlflow.what)
    shutil.copytree(created.logs, here.plan.kept / created.id, dirs_exist_ok=True)
    shutil.rmtree(created.workspace / "output", ignore_errors=True)  # checkpoints of the real size


def short_run(spec: RunSpec, on_gpu: bool) -> RunSpec:
    """Returns a run like the given one that takes a few minutes."""
    return spec.model_copy(
        update={
            "run_id": new_run_id(spec.task, "scripted"),
            "agent": "scripted",
            "driver": None,
            "base_url": None,
            "mode": "free",
            "trials": 1,
            "protocol": "strict",
            "budget_s": 300.0,
            "steps": 10 if on_gpu else 2,
            "limit": 2 * ITEMS,
            "generation": spec.generation.model_copy(update={"max_new_tokens": ANSWER_TOKENS}),
            "max_submissions": 4,
            "keep": "none",
        }
    )


def stage_rows(run: RunDir) -> Iterator[Row]:
    """Yields a row for each stage of a run."""
    for stage in STAGES:
        path = run.record_path(stage)
        if path.exists():
            yield Row(link=f"stage {stage}", result="pass", seconds=_seconds(path), found="")
        else:
            yield Row(link=f"stage {stage}", result="skipped", seconds=0, found="the run ended before it")


def _seconds(record: Path) -> float:
    import json

    return float(json.loads(record.read_text(encoding="utf-8"))["seconds"])


def submission_rows(run: RunDir) -> Iterator[Row]:
    """Yields a row for what the agent must have trained and submitted."""
    from a2rl.run.events import Graded, GradingFailed, SubmissionAccepted, SubmissionReceived, SubmissionRefused

    ledger = run.ledger
    accepted = {each.receipt: each.weights_digest for each in ledger.events(SubmissionAccepted)}
    refused = {each.receipt: each.reason for each in ledger.events(SubmissionRefused)}
    failed = {each.weights_digest: each.reason for each in ledger.events(GradingFailed)}
    graded = {each.weights_digest: each for each in ledger.events(Graded)}
    received, before_s = {each.claims.method: each for each in ledger.events(SubmissionReceived)}, 0.0
    for method in ("SFT", "GRPO"):
        link, ours = f"agent trains with {method}", received.get(method)
        if ours is None:
            why = f"the agent submitted nothing of it: {run.agent_log} says why"
            yield Row(link=link, result="fail", seconds=0, found=why)
            continue
        yield Row(link=link, result="pass", seconds=ours.elapsed_s - before_s, found="")
        digest = accepted.get(ours.receipt, "")
        grade = graded.get(digest)
        if grade is None or grade.result.score is None:
            why = refused.get(ours.receipt) or failed.get(digest) or (grade.result.reason if grade else "no grade")
            yield Row(link=f"grade of {method}", result="fail", seconds=0, found=why)
            continue
        start = read_engine_start(run.items(digest, run.spec.public_split))
        before_s = grade.elapsed_s
        yield Row(link=f"grade of {method}", result="pass", seconds=before_s - ours.elapsed_s, found=start)


def read_engine_start(result: Path) -> str:
    """Returns how the engine got the weights of a grade."""
    from a2rl.grading.job import GradeResult

    start = read_model(result, GradeResult).engine_start
    return f"vLLM {start.kind}, {start.seconds:.1f} s" if start else ""


GROUPS: dict[str, tuple[Callable[[Rehearsal], None], float]] = {
    "model": (model, 1800.0),
    "checks": (checks, 300.0),
    "copy": (copy, 300.0),
    "grades": (grades, 600.0),
    "together": (together, 480.0),
    "run": (run, 900.0),
}
"""The groups with their time limits in seconds; that of the model has time for its download."""

if __name__ == "__main__":
    GROUPS[sys.argv[1]][0](Rehearsal(read_model(Path(sys.argv[2]), Plan), Settings.load()))
