"""How much likelier training made the right answers of eval items, against those of fresh twins.

A model that has learned eval items by heart finds their gold answers likelier, also where its own answers do not show
it: every item has a number here, not only a verdict. The base model is asked for the same answers, and what training
has gained is compared. Nothing is generated, so both models read each text once, which takes less than a grade.

`python -m a2rl.contamination.gold_answers JOB RESULT` is the process that reads them, with the base model first. For
each model it writes the log-probability of every answer after its prompt, in nats, divided by the answer's characters,
so that tokenizers do not matter. On a GPU if there is one, else on the CPU.
"""

import copy
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.errors import InfrastructureError, UnclearFaultError
from a2rl.core.files import FrozenModel, read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading.model_process import ModelSize, run_model_process
from a2rl.grading.prompt_check import asked_prompts
from a2rl.linux.gpus import CPU
from a2rl.linux.process_tree import die_with_parent
from a2rl.run.spec import RunSpec
from a2rl.sampling import NO_KWARGS, Prompt
from a2rl.sampling.engine_params import Dtype, computing_type
from a2rl.sampling.loading import load_model, load_tokenizer
from a2rl.task_api.catalog import load_grader

PROCESS = "a2rl.contamination.gold_answers"
MOST = 300
"""Items of each kind: with more, the test would not be better, only slower."""


class Asked(FrozenModel):
    """A prompt and the right answer to it."""

    id: str
    prompt: str | tuple[tuple[str, str], ...]
    """A text, or the turns of a chat as role and content."""
    answer: str


class GoldJob(FrozenModel):
    """What the process does."""

    models: tuple[Path, ...]
    """The base model is the first one. As in grading, it decides the dtype that all are computed in."""
    items: tuple[Asked, ...]
    chat_template_kwargs: dict[str, Any]
    """See `a2rl.sampling.SamplingParams`."""


class GoldResult(FrozenModel):
    """The log-probabilities of the answers in nats for each character, by item of each model that was read."""

    values: tuple[tuple[float, ...], ...] = ()


class BaseModelUnreadError(InfrastructureError):
    """The base model could not be read on this machine, or not in time: nothing that the agent made is to blame."""


class Gains(NamedTuple):
    """What training has gained on right answers, in nats for each character, by item."""

    seen: Mapping[str, float]
    fresh: Mapping[str, float]


def asked_items(spec: RunSpec, model: Path, hidden: Path, ids: Sequence[str], root: Path) -> list[Asked]:
    """Returns the items as a model is asked them; nothing if their answers are not one text, as in games.

    Args:
        model: The model whose tokenizer decides the form of the prompts.
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
    chat_template_kwargs: Mapping[str, Any] = NO_KWARGS,
    device: str = CPU,
    grade_s: float = 0.0,
) -> Gains:
    """Reads the gold answers with both models, in a process of its own. An existing result is used again.

    Args:
        models: The trained model and the base model.
        folder: Where the result and the log are, named after the trained model's folder.
        grade_s: How long the base model's grade took; to read takes less.

    Raises:
        BaseModelUnreadError: The base model could not be read on this machine, or not in time.
        UnclearFaultError: The base model could, and the trained one could not.
    """
    trained, base = models
    job = GoldJob(models=(base, trained), items=(*seen, *fresh), chat_template_kwargs=dict(chat_template_kwargs))
    result = folder / f"{trained.name}-gold.json"
    given, log = result.with_suffix(".job"), result.with_suffix(".log")
    failure, known = "", _known(result)
    # The trained model has the architecture, tokenizer and rows of the base model. So if that was read in time, it is,
    # too, with all of the time for itself at the second try; unless the agent made it slow.
    for patience in (1, 2):
        if len(known) < len(models):
            write_model(given, job)
            timeout_s = patience * 2 * (ModelSize.of(base).timeout_s + grade_s)
            failure = run_model_process(PROCESS, [str(given), str(result)], log, timeout_s, settings, device)
            given.unlink()
            known = _known(result)
        if not known:
            raise BaseModelUnreadError(f"the base model could not be read here ({failure})")
    if len(known) < len(models):
        raise UnclearFaultError(failure)
    before, after = known
    gains = [(item.id, new - old) for item, new, old in zip(job.items, after, before, strict=True)]
    return Gains(dict(gains[: len(seen)]), dict(gains[len(seen) :]))


def _known(result: Path) -> tuple[tuple[float, ...], ...]:
    return read_model(result, GoldResult).values if result.is_file() else ()


class Row(NamedTuple):
    """A prompt with its answer, in tokens."""

    tokens: list[int]
    answer: int
    """The number of tokens at the end that are the answer."""


def main() -> None:
    """Reads the job, and writes the result after each model that is not in it."""
    die_with_parent()
    job, result = read_model(Path(sys.argv[1]), GoldJob), Path(sys.argv[2])
    dtype, values = computing_type("auto", job.models[0]), _known(result)
    for model in job.models[len(values) :]:
        values = (*values, tuple(_read(model, job, dtype)))
        write_model(result, GoldResult(values=values))


def _read(folder: Path, job: GoldJob, dtype: Dtype | None) -> list[float]:
    """Returns the log-probability of each answer by one model, in nats for each character."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, dtype or ("float32" if device.type == "cpu" else "bfloat16")).to(device).eval()
    context = int(model.config.get_text_config().max_position_embeddings)
    rows = [_row(item, tokenizer, job.chat_template_kwargs, context) for item in job.items]
    with torch.inference_mode():
        begun, cache = _begun(model, rows)
        values = [_log_probability(model, row, begun, cache) for row in rows]
    return [value / max(1, len(item.answer)) for item, value in zip(job.items, values, strict=True)]


def _row(item: Asked, tokenizer: Any, chat_template_kwargs: Mapping[str, Any], context: int) -> Row:
    """Returns an item in tokens; a prompt that is too long for the context loses its beginning."""
    from a2rl.sampling.decoder import prompt_tokens

    said = item.prompt
    asked = said if isinstance(said, str) else [{"role": role, "content": content} for role, content in said]
    prompt = prompt_tokens(tokenizer, asked, chat_template_kwargs)
    is_open = isinstance(item.prompt, str) and item.prompt and not item.prompt[-1].isspace()
    text = f" {item.answer}" if is_open and not item.answer[:1].isspace() else item.answer
    answer = list(tokenizer(text, add_special_tokens=False)["input_ids"])[: context - 1]
    return Row((prompt[-(context - len(answer)) :] or answer[:1]) + answer, len(answer))


def _begun(model: Any, rows: list[Row]) -> tuple[int, Any]:
    """Reads what all rows begin with, such as worked examples; returns its length and the cache of it."""
    import torch

    from a2rl.sampling.decoder import unsupported_layers

    columns = zip(*(row.tokens for row in rows), strict=False)
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    # Something of each prompt is left: the place before an answer says how likely its first token is.
    begun = min([shared, *(len(row.tokens) - row.answer - 1 for row in rows)])
    if begun <= 0 or unsupported_layers(model.config.get_text_config()):  # whose cache cannot be copied
        return 0, None
    tokens = torch.tensor([rows[0].tokens[:begun]], device=model.device)
    return begun, model(input_ids=tokens, use_cache=True, logits_to_keep=1).past_key_values


def _log_probability(model: Any, row: Row, begun: int, cache: Any) -> float:
    """Returns the log-probability of a row's answer, in nats."""
    import torch

    if not row.answer:
        return 0.0
    tokens = torch.tensor([row.tokens], device=model.device)
    logits = model(
        input_ids=tokens[:, begun:], past_key_values=copy.deepcopy(cache), logits_to_keep=row.answer + 1
    ).logits[0, -row.answer - 1 : -1]
    chosen = torch.log_softmax(logits.float(), dim=-1).gather(1, tokens[0, -row.answer :, None])
    return float(chosen.sum())


if __name__ == "__main__":
    main()
