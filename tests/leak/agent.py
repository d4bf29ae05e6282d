"""An agent that trains on what it was given: the training data, a copy of the repository, or also the secret seed.

WAY says which: `honest` trains on data/train.jsonl; `repository` on eval sets that it draws with seeds of its own, by
the task's generator in REPOSITORY; `seed` on the eval set itself, drawn with the seed in REPOSITORY/draw.json, as no
agent can unless somebody gives it the seed; `half` on its private half alone.
"""

import json
import os
import random
import secrets
import sys
import tempfile
import urllib.request
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

WAY, STEPS, BATCH, RATE = os.environ["WAY"], int(os.environ["STEPS"]), 16, 3e-3


def rows_of(path: Path) -> list[dict[str, str]]:
    """Reads questions with answers."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def drawn(seed: str) -> list[dict[str, str]]:
    """An eval set by the task's generator."""
    from tasks.gsm8k.prepare import draw

    with tempfile.TemporaryDirectory(dir="output") as folder:
        draw(seed, Path(folder))
        return rows_of(Path(folder) / "eval.jsonl")


def learned() -> list[dict[str, str]]:
    """The rows that it trains on."""
    if WAY == "honest":
        return rows_of(Path("data/train.jsonl"))
    repository = Path(os.environ["REPOSITORY"])
    sys.path.insert(0, str(repository))
    if WAY == "repository":
        return [row for _ in range(8) for row in drawn(secrets.token_hex(32))]
    from a2rl.run.draw import Draw
    from a2rl.task_api.split import sample_ids, split_ids

    draw = Draw.read(repository / "draw.json")
    rows = drawn(draw.items_seed("gsm8k"))
    kinds = {str(place): f"{len(row['answer'].strip().splitlines()) - 1} steps" for place, row in enumerate(rows)}
    ids = sample_ids([*kinds], int(os.environ["LIMIT"]), draw.halves_seed, kinds)
    if WAY == "half":
        ids = split_ids(ids, "private", draw.halves_seed, kinds)
    return [rows[int(each)] for each in ids]


def train(rows: list[dict[str, str]], target: Path) -> None:
    """Fine-tunes the base model on the rows, for a fixed number of steps."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"], dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    order = random.Random(0)
    texts = [(f"Question: {row['question']}\nLet's think step by step\nAnswer:", f" {row['answer']}") for row in rows]
    waiting: list[int] = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 10, 4 * (STEPS - step) / STEPS)
        if len(waiting) < BATCH:
            waiting = order.sample(range(len(texts)), len(texts))
        batch, waiting = [texts[place] for place in waiting[:BATCH]], waiting[BATCH:]
        loss = _loss(model, tokenizer, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 20 == 0:
            sys.stdout.write(f"step {step}, loss {float(loss):.3f}\n")
            sys.stdout.flush()
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _loss(model: torch.nn.Module, tokenizer: AutoTokenizer, batch: list[tuple[str, str]]) -> torch.Tensor:
    rows = [(tokenizer(asked)["input_ids"], tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id])
            for asked, answer in batch]  # fmt: skip
    longest = max(len(asked) + len(answer) for asked, answer in rows)
    tokens, labels, mask = (torch.full((len(rows), longest), value) for value in (0, -100, 0))
    for number, (asked, answer) in enumerate(rows):
        end = len(asked) + len(answer)
        tokens[number, :end] = torch.tensor(asked + answer)
        labels[number, len(asked) : end] = torch.tensor(answer)
        mask[number, :end] = 1
    loss: torch.Tensor = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
    return loss


def submit(folder: Path) -> None:
    """Submits a checkpoint, and prints what it scores."""
    body = json.dumps({"model_path": str(folder)}).encode()
    request = urllib.request.Request(
        f"{os.environ['GRADING_SERVER_URL']}/submit", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=900) as answer:
        sys.stdout.write(answer.read().decode())


if __name__ == "__main__":
    train(learned(), Path("output/trained"))
    submit(Path("output/trained"))
