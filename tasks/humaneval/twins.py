"""Twins of HumanEval's problems: the same function under another name, with other names of its arguments."""

import ast
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from a2rl.core.files import read_jsonl, write_jsonl

FUNCTIONS = ("compute", "derive", "resolve", "evaluate", "work_out", "determine")
ARGUMENTS = ("given", "item", "data_in", "arg", "entry", "operand")


def write_twins(hidden: Path, seed: str, target: Path) -> list[str]:
    """See `a2rl.task_api.contract.TwinsModule`."""
    twins: dict[str, dict[str, Any]] = {}
    for row in read_jsonl(hidden / "eval.jsonl"):
        twin = twin_of(row, random.Random(f"humaneval-twins/{seed}/{row['task_id']}"))
        if twin is not None:
            twins[row["task_id"]] = twin
    write_jsonl(target / "eval.jsonl", twins.values())
    if (hidden / "training.jsonl").is_file():
        write_jsonl(target / "training.jsonl", read_jsonl(hidden / "training.jsonl"))
    return list(twins)


def twin_of(row: Mapping[str, Any], rng: random.Random) -> dict[str, Any] | None:
    """Returns a problem with other names; None if it cannot be read."""
    names = _arguments(row["prompt"] + row["canonical_solution"], row["entry_point"])
    if names is None:
        return None
    called = f"{rng.choice(FUNCTIONS)}_{rng.randint(10, 99)}"
    changed = {name: f"{rng.choice(ARGUMENTS)}_{place}" for place, name in enumerate(names, start=1) if len(name) > 1}
    prompt, solution = (_with_names(row[part], changed) for part in ("prompt", "canonical_solution"))
    whole = re.compile(rf"\b{re.escape(row['entry_point'])}\b")
    twin = {**row, "prompt": whole.sub(called, prompt), "canonical_solution": whole.sub(called, solution)}
    return {**twin, "test": whole.sub(called, row["test"]), "entry_point": called}


def _arguments(program: str, function: str) -> list[str] | None:
    """Returns the names of a function's arguments; None if there is no such function."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return [each.arg for each in node.args.args]
    return None


def _with_names(text: str, names: Mapping[str, str]) -> str:
    """Replaces whole words that are not attributes or parts of longer names."""
    for name, other in names.items():
        text = re.sub(rf"(?<![\w.]){re.escape(name)}\b", other, text)
    return text
