"""Stages `corpus` and `tiny` (DVC): what the base model of the mini variants has read, and the model itself."""

from pathlib import Path

from a2rl.catalog import load_preparer, load_task
from a2rl.files import read_jsonl, write_jsonl
from a2rl.params import Params
from a2rl.settings import Settings
from a2rl.tiny import TinyReport, build_tiny


def corpus(task: str, params: Params, settings: Settings) -> Path:
    """Writes one task's share of the pretraining text."""
    load_task(task, settings.root)
    path = settings.pretraining / f"{task}.jsonl"
    write_jsonl(path, ({"text": text} for text in load_preparer(task).pretraining_text(params.tiny.seed)))
    return path


def tiny(params: Params, settings: Settings) -> TinyReport:
    """Builds `models/tiny` from all the text there is; the same seed on the same machine gives the same weights."""
    documents = [row["text"] for path in sorted(settings.pretraining.glob("*.jsonl")) for row in read_jsonl(path)]
    return build_tiny(documents, settings.models / "tiny", params.tiny)
