"""The process that reads gold answers with models: `python -m a2rl.contamination.gold_process JOB RESULT`.

For each model it writes the log-probability of every answer after its prompt, in nats, divided by the answer's
characters, so that tokenizers do not matter. On a GPU if there is one, else on the CPU.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from a2rl.contamination.gold_answers import Asked, GoldJob, GoldResult
from a2rl.core.files import read_model, write_model
from a2rl.linux.process_tree import die_with_parent
from a2rl.models.loading import load_model, load_tokenizer

if TYPE_CHECKING:
    import torch

MAX_LOGITS = 1 << 26
"""Logits of one batch: 256 MiB in float32."""


class Row(NamedTuple):
    """A prompt with its answer, in tokens."""

    place: int
    tokens: list[int]
    answer: int
    """The number of tokens at the end that are the answer."""


def main() -> None:
    """Reads the job and writes the result."""
    die_with_parent()
    job = read_model(Path(sys.argv[1]), GoldJob)
    values = tuple(tuple(_read(model, job.items)) for model in job.models)
    write_model(Path(sys.argv[2]), GoldResult(values=values))


def _read(folder: Path, items: tuple[Asked, ...]) -> list[float]:
    """Returns the log-probability of each answer by one model, in nats for each character."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, "float32" if device.type == "cpu" else "auto").to(device).eval()
    context = int(model.config.get_text_config().max_position_embeddings)
    rows = [_row(place, item, tokenizer, context) for place, item in enumerate(items)]
    values = [0.0] * len(items)
    with torch.inference_mode():
        for batch in _batches(rows, int(model.config.get_text_config().vocab_size)):
            for row, value in zip(batch, _log_probabilities(model, batch, device), strict=True):
                values[row.place] = value / max(1, len(items[row.place].answer))
    return values


def _row(place: int, item: Asked, tokenizer: Any, context: int) -> Row:
    """Returns an item in tokens; a prompt that is too long for the context loses its beginning."""
    if isinstance(item.prompt, str):
        prompt = list(tokenizer(item.prompt)["input_ids"])
    else:
        turns = [{"role": role, "content": content} for role, content in item.prompt]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        prompt = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    is_open = isinstance(item.prompt, str) and item.prompt and not item.prompt[-1].isspace()
    text = f" {item.answer}" if is_open and not item.answer[:1].isspace() else item.answer
    answer = list(tokenizer(text, add_special_tokens=False)["input_ids"])[: context - 1]
    return Row(place, (prompt[-(context - len(answer)) :] or answer[:1]) + answer, len(answer))


def _batches(rows: list[Row], vocabulary: int) -> Iterator[list[Row]]:
    """Yields rows of similar length together, as many as their logits allow."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda each: len(each.tokens)):
        if batch and (len(batch) + 1) * len(row.tokens) * vocabulary > MAX_LOGITS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _log_probabilities(model: Any, batch: list[Row], device: "torch.device") -> list[float]:
    """Returns the log-probability of each row's answer, in nats. Shapes: rows R, longest row T, vocabulary V."""
    import torch

    longest = max(len(row.tokens) for row in batch)
    tokens_rt = torch.zeros((len(batch), longest), dtype=torch.long, device=device)
    mask_rt = torch.zeros_like(tokens_rt)
    for number, row in enumerate(batch):
        tokens_rt[number, : len(row.tokens)] = torch.tensor(row.tokens, device=device)
        mask_rt[number, : len(row.tokens)] = 1
    logits_rtv = model(input_ids=tokens_rt, attention_mask=mask_rt).logits
    values = []
    for number, row in enumerate(batch):
        end, start = len(row.tokens), len(row.tokens) - row.answer
        chosen = torch.log_softmax(logits_rtv[number, start - 1 : end - 1].float(), dim=-1)
        values.append(float(chosen.gather(1, tokens_rt[number, start:end, None]).sum()))
    return values


if __name__ == "__main__":
    main()
