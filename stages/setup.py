"""Stage `setup`: resolves the run's settings, builds the workspace and opens the ledger."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from a2rl.agent_systems.definition import find_agent
from a2rl.config.provision import Provision, provision_of
from a2rl.core.errors import MissingInputError
from a2rl.core.files import digest_of, folder_digest
from a2rl.core.settings import Settings
from a2rl.execution.workspace import build_workspace
from a2rl.grading.base_trial import BaseTrial, try_base_model
from a2rl.grading.devices import plan_memory
from a2rl.grading.job import ids_of_run
from a2rl.grading.prompt_check import check_prompts
from a2rl.grading.run_judge import check_judge_of
from a2rl.linux.gpus import hardware, usable_gpus
from a2rl.models.base_model import TINY, model_digest, resolve_model
from a2rl.models.checkpoint import SMALL_FILES, unpacked_bytes
from a2rl.run.directory import RunDir
from a2rl.run.disk import check_disk
from a2rl.run.events import AgentStarted, RunOpened
from a2rl.run.gpu_share import wants_no_gpu
from a2rl.run.inputs import eval_set, place_in
from a2rl.run.records import SetupRecord
from a2rl.run.spec import RunSpec
from a2rl.sandbox.selection import select_sandbox
from a2rl.task_api.catalog import load_grader, load_task, task_folder
from a2rl.task_api.data import about, ensure_data, hidden_digest, reading, require_complete


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a run is made of, found on this machine or fetched."""

    provision: Provision
    base_model: Path
    data: Path
    """What the agent may see of it is in `visible`."""
    graded_on: Path
    """The same folder, or one with the eval items that were drawn for the run's suite."""


def setup(run: RunDir, settings: Settings) -> SetupRecord:
    """Prepares everything that the later stages use.

    Raises:
        UsageError: The spec names something that does not exist, or a base model of which no copy could be submitted.
        InfrastructureError: The hub or the disk failed.
    """
    if (done := run.read("setup", SetupRecord)) is not None:
        is_whole = run.workspace.exists() and run.given.exists()  # the checks read both after the agent has ended
        return done if is_whole or run.record_path("validity").exists() else _rebuilt(run, done, settings)
    started, spec = time.monotonic(), run.spec
    load_task(spec.task, settings.root)
    if spec.judge and not spec.judge.serve:  # the model of such a judge would be loaded, and was before the start
        check_judge_of(spec, settings)
    with _inputs_of(run, settings) as inputs:
        with suppress(OSError):  # if it is another user's or read-only, its owner decides who may read it
            (inputs.data / "hidden").chmod(0o700)
        record = _checked(spec, inputs, settings)
        _build(run, inputs, record, settings)
    run.clock.create(spec.budget_s, refunds=spec.protocol == "strict")
    opened = RunOpened(
        spec_digest=digest_of(spec.model_dump(mode="json")),
        model_digest=record.model_digest,
        data_digest=record.data_digest,
        draw=spec.draw.commitment if spec.draw else "",
    )
    run.ledger.append_unless(opened, lambda _: True)
    return run.write("setup", record.model_copy(update={"seconds": time.monotonic() - started}))


@contextmanager
def _inputs_of(run: RunDir, settings: Settings) -> Iterator[_Inputs]:
    """Finds the inputs of a run. While they are in use, no other process makes its data anew."""
    spec = run.spec
    provision = provision_of(spec, find_agent(spec.agent, settings.root), settings)
    base_model = resolve_model(spec.model, settings)
    check_disk(spec, unpacked_bytes(base_model), run.root)
    data = ensure_data(spec.task, spec.variant, Path(spec.source) if spec.source else None, settings)
    with reading(data):
        require_complete(data)
        yield _Inputs(provision, base_model, data, eval_set(spec, settings) or data)


def _checked(spec: RunSpec, inputs: _Inputs, settings: Settings) -> SetupRecord:
    """Checks that the base model can be graded on the data and submitted, and describes both."""
    hidden, base_model = inputs.graded_on / "hidden", inputs.base_model
    ids_of_run(spec, hidden, spec.public_split)  # refuses a sample that the data is too small for
    check_prompts(spec, spec.model, base_model, hidden, settings.root)
    gpus = () if wants_no_gpu(spec) else usable_gpus(settings).gpus
    digest = model_digest(base_model)
    # `tiny` is built here with save_pretrained, and a test tries it, so that small runs need not wait for this.
    trial = BaseTrial() if spec.model == TINY else try_base_model(base_model, digest, settings)
    return SetupRecord(
        seconds=0,
        base_model=place_in(settings.root, base_model),
        model_digest=digest,
        small_files_digest=folder_digest(base_model, SMALL_FILES),
        complete_config=trial.complete_config,
        base_not_tried=trial.not_tried,
        hidden=place_in(settings.root, hidden),
        data_digest=hidden_digest(inputs.graded_on),
        eval_items=len(load_grader(spec.task).item_ids(hidden)),
        data_about=about(inputs.graded_on),
        sandbox=select_sandbox(spec.sandbox, settings),
        hardware=hardware(),
        memory=plan_memory(spec, base_model, gpus, settings.root),
        agent_python=str(inputs.provision.python),
    )


def _build(run: RunDir, inputs: _Inputs, record: SetupRecord, settings: Settings) -> None:
    """Makes the workspace of the agent."""
    description = task_folder(run.spec.task, settings.root) / "description.md"
    build_workspace(run, inputs.base_model, inputs.data / "visible", description, inputs.provision, record.sandbox)


def _rebuilt(run: RunDir, done: SetupRecord, settings: Settings) -> SetupRecord:
    """Makes the workspace again, with the agent's code, and what the agent was given, as far as they are missing, for
    a run that was restored from its copy in a store.

    Raises:
        MissingInputError: The base model or the data of this machine is not what the run began with.
    """
    with _inputs_of(run, settings) as inputs:
        if hidden_digest(inputs.graded_on) != done.data_digest:
            raise MissingInputError(
                f"{inputs.graded_on} is not the data that run {run.id} began with: `dvc pull` gets it"
            )
        if model_digest(inputs.base_model) != done.model_digest:
            raise MissingInputError(
                f"{inputs.base_model} is not the model that run {run.id} began with: "
                "`dvc pull` or `a2rl models get` gets it"
            )
        is_anew = not run.workspace.exists() and bool(run.ledger.events(AgentStarted))
        here = {
            "base_model": place_in(settings.root, inputs.base_model),
            "hidden": place_in(settings.root, inputs.graded_on / "hidden"),
            "agent_python": str(inputs.provision.python),
            "workspace_made_anew": done.workspace_made_anew or is_anew,
        }
        record = run.write("setup", done.model_copy(update=here))  # before the workspace, which shows that this is done
        _build(run, inputs, record, settings)
        return record
