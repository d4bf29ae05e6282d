"""Stages `corpus` and `tiny` (DVC): the pretraining text of the mini variants' base model, and the model itself."""

from pathlib import Path

from a2rl.config.params import Params
from a2rl.core.files import read_jsonl, write_jsonl
from a2rl.core.settings import Settings
from a2rl.models.tiny import TinyReport, build_tiny
from a2rl.task_api.catalog import load_preparer, load_task
from a2rl.task_api.contract import PretrainingPreparer


def corpus(task: str, params: Params, settings: Settings) -> Path:
    """Writes one task's share of the pretraining text and returns the file."""
    load_task(task, settings.root)
    path = settings.pretraining / f"{task}.jsonl"
    preparer = load_preparer(task)
    texts = preparer.pretraining_text(params.tiny.seed) if isinstance(preparer, PretrainingPreparer) else ()
    write_jsonl(path, ({"text": text} for text in texts))
    return path


def tiny(params: Params, settings: Settings) -> TinyReport:
    """Builds `models/tiny` from all pretraining text; the same seed on the same machine gives the same weights."""
    documents = [row["text"] for path in sorted(settings.pretraining.glob("*.jsonl")) for row in read_jsonl(path)]
    return build_tiny(documents, settings.models / "tiny", params.tiny)
