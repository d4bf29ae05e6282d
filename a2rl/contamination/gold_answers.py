"""How much likelier training made the right answers of eval items, against those of fresh twins.

A model that has learned eval items by heart finds their gold answers likelier, also where its own answers do not show
it: every item has a number here, not only a verdict. The base model is asked for the same answers, and what training
has gained is compared. Nothing is generated, so both models read each text once, which takes less than a grade.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from a2rl.core.errors import InfrastructureError
from a2rl.core.files import read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading.model_process import ModelSize, run_model_process
from a2rl.grading.prompt_check import asked_prompts
from a2rl.linux.gpus import CPU
from a2rl.run.spec import RunSpec
from a2rl.sampling import Prompt
from a2rl.task_api.catalog import load_grader

PROCESS = "a2rl.contamination.gold_process"
MOST = 300
"""Items of each kind: with more, the test would not be better, only slower."""


class Asked(BaseModel):
    """A prompt and the right answer to it."""

    model_config = ConfigDict(frozen=True)

    id: str
    prompt: str | tuple[tuple[str, str], ...]
    """A text, or the turns of a chat as role and content."""
    answer: str


class GoldJob(BaseModel):
    """What the process of `gold_process` does."""

    model_config = ConfigDict(frozen=True)

    models: tuple[Path, ...]
    items: tuple[Asked, ...]


class GoldResult(BaseModel):
    """The log-probabilities of the answers in nats for each character, by model and item."""

    model_config = ConfigDict(frozen=True)

    values: tuple[tuple[float, ...], ...]


class Gains(NamedTuple):
    """What training has gained on right answers, in nats for each character, by item."""

    seen: Mapping[str, float]
    fresh: Mapping[str, float]


def asked_items(spec: RunSpec, model: Path, hidden: Path, ids: Sequence[str], root: Path) -> list[Asked]:
    """Returns the items as a model is asked them; nothing if their answers are not one text, as in games.

    Args:
        spec: The run.
        model: The model whose tokenizer decides the form of the prompts.
        hidden: The grader's data.
        ids: The items.
        root: The checkout.
    """
    prompts = asked_prompts(spec, model, hidden, ids, root)
    if prompts is None or len(prompts) != len(ids):
        return []
    gold = load_grader(spec.task).gold_outputs(hidden)
    return [Asked(id=each, prompt=_plain(prompt), answer=gold[each]) for each, prompt in zip(ids, prompts, strict=True)]


def _plain(prompt: Prompt) -> str | tuple[tuple[str, str], ...]:
    return prompt if isinstance(prompt, str) else tuple((turn.role, turn.content) for turn in prompt)


def measure(
    models: tuple[Path, Path],
    seen: Sequence[Asked],
    fresh: Sequence[Asked],
    folder: Path,
    settings: Settings,
    device: str = CPU,
) -> Gains:
    """Reads the gold answers with both models, in a process of its own. An existing result is used again.

    Args:
        models: The trained model and the base model.
        seen: Eval items.
        fresh: Their twins.
        folder: Where the result and the log are, named after the trained model's folder.
        settings: The settings of this checkout.
        device: The device that computes.

    Raises:
        InfrastructureError: It could not be done on this machine, or not in time.
    """
    job, result = GoldJob(models=models, items=(*seen, *fresh)), folder / f"{models[0].name}-gold.json"
    if not result.is_file():
        _read(job, result, device, settings)
    after, before = read_model(result, GoldResult).values
    gains = [(item.id, new - old) for item, new, old in zip(job.items, after, before, strict=True)]
    return Gains(dict(gains[: len(seen)]), dict(gains[len(seen) :]))


def _read(job: GoldJob, result: Path, device: str, settings: Settings) -> None:
    given, timeout_s = result.with_suffix(".job"), 2 * ModelSize.of(job.models[1]).timeout_s
    write_model(given, job)
    arguments = [str(given), str(result)]
    failure = run_model_process(PROCESS, arguments, result.with_suffix(".log"), timeout_s, settings, device)
    given.unlink()
    if failure:
        raise InfrastructureError(failure)
