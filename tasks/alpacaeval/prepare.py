"""AlpacaEval's data. The agent gets instructions with good answers; the grader gets other instructions with the
reference's answers, and the calibration of the length-controlled win rate.

    visible/  train.jsonl    rule.py (mini only: the judge's rule)    prompts.py    model_text.py (what counts of an
              answer)    the modules for rollouts
    hidden/   eval.jsonl     df_gamed.csv     about.json     incomplete.txt (where there is no training data)

full: the 805 instructions with the outputs of gpt4_1106_preview, and for training the first 2000 rows of
tatsu-lab/alpaca (as the reference, autorl_bench/benchmarks/alpacaeval/data.py); from the hub, or from a mirror with

    gpt4_1106_preview_outputs.json or alpaca_eval_gpt4_baseline.json     needed
    alpaca.jsonl, alpaca.json or alpaca_data.json     without it no run can start, but checkpoints can be graded
    df_gamed.csv                                      without it there is no length-controlled win rate

each of them also as .xz. mini: generated (see mini.py).
"""

import csv
import io
import json
import lzma
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import digest_of, file_digest, write_jsonl
from a2rl.core.hub import DataSource, download
from a2rl.handout import hand_out
from a2rl.task_api.contract import Variant
from a2rl.task_api.data import INCOMPLETE
from tasks.alpacaeval import mini, prompts
from tasks.alpacaeval.rule import preference
from tasks.alpacaeval.task import TASK

HERE = Path(__file__).parent
MINI_TRAIN, MINI_SEED = 2400, 2604
pretraining_text, canonical = mini.pretraining_text, mini.canonical
TRAIN_ROWS = 2000
TRAINING = DataSource(
    repo_id="tatsu-lab/alpaca",
    revision="dce01c9b08f87459cf36a430d809084718273017",
    files=("data/train-00000-of-00001-a09b74b3ef9c3b56.parquet",),
    url="https://github.com/tatsu-lab/stanford_alpaca",
    licence="CC-BY-NC-4.0",
)
TRAINING_NAMES = ("alpaca.jsonl", "alpaca.json", "alpaca_data.json")
OUTPUT_NAMES = ("gpt4_1106_preview_outputs.json", "alpaca_eval_gpt4_baseline.json")
OUTPUTS_DIGEST = "aea8604a31b28c9a84df8dedb8789039678861da015c70d57ebcabace1e10158"
"""Digest of the instructions and outputs, in order."""
CALIBRATION = "df_gamed.csv"
CALIBRATION_DIGEST = TASK.source.sha256[CALIBRATION]


def prepare(variant: Variant, source: Path | None, visible: Path, hidden: Path) -> None:
    """See `a2rl.task_api.contract.Preparer`."""
    about = _prepare_mini(visible, hidden) if variant == "mini" else _prepare_full(source, visible, hidden)
    (hidden / "about.json").write_text(json.dumps(about), encoding="utf-8")
    hand_out(visible, prompts)


def calibration(source: Path | None) -> Path:
    """Returns the published `df_gamed.csv`, from a local mirror or from the hub.

    Raises:
        UsageError: the mirror lacks it.
        IntegrityError: it is not the published one.
        InfrastructureError: the hub cannot be reached.
    """
    path = download(TASK.source, CALIBRATION) if source is None else source / CALIBRATION
    if not path.is_file():
        raise UsageError(f"{source} has no {CALIBRATION}")
    if file_digest(path) != CALIBRATION_DIGEST:
        raise IntegrityError(f"{path} is not the published {CALIBRATION}: get a clean copy")
    return path


def read_json(path: Path) -> Any:
    """Reads a .json or .json.xz file.

    Raises:
        UsageError: it is missing, or not JSON.
    """
    try:
        return json.loads(_text_of(path))
    except FileNotFoundError as error:
        raise UsageError(f"file not found: {path}") from error
    except (OSError, lzma.LZMAError, EOFError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON in UTF-8: {error}") from error


def _text_of(path: Path) -> str:
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        return file.read().decode("utf-8-sig")


def _prepare_mini(visible: Path, hidden: Path) -> dict[str, str]:
    train = mini.generate(MINI_TRAIN, MINI_SEED, "train")
    write_jsonl(visible / "train.jsonl", (_training_row(each.instruction, "", each.good) for each in train))
    shutil.copyfile(HERE / "rule.py", visible / "rule.py")
    return _write_mini(_public_edition(), hidden)


def draw(seed: str, hidden: Path) -> None:
    """See `a2rl.task_api.contract.DrawingPreparer`."""
    known = {mini.canonical(each.instruction) for each in _public_edition()}
    about = _write_mini(mini.generate(TASK.variant("mini").eval_items, seed, "eval", but=known), hidden)
    (hidden / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _public_edition() -> list[mini.Exercise]:
    return mini.generate(TASK.variant("mini").eval_items, MINI_SEED, "eval")


def _write_mini(test: Sequence[mini.Exercise], hidden: Path) -> dict[str, str]:
    write_jsonl(
        hidden / "eval.jsonl",
        (
            {"instruction": each.instruction, "dataset": each.kind, "reference": each.reference, "gold": each.good}
            for each in test
        ),
    )
    (hidden / CALIBRATION).write_text(_gamed(test), encoding="utf-8")
    return {"judge": "the mini variant's rule"}


def _prepare_full(source: Path | None, visible: Path, hidden: Path) -> dict[str, str]:
    write_jsonl(hidden / "eval.jsonl", _reference_outputs(source))
    about = {}
    try:
        shutil.copyfile(calibration(source), hidden / CALIBRATION)
    except UsageError as error:
        about["length control"] = f"none: {error}"
    if (rows := _training_rows(source)) is None:
        reason = f"{source} has no training data ({' or '.join(TRAINING_NAMES)}); with it runs can start"
        (hidden / INCOMPLETE).write_text(reason, encoding="utf-8")
        about["training data"] = f"none: {reason}"
    else:
        write_jsonl(visible / "train.jsonl", rows)
    return about


def _training_row(instruction: str, asked_about: str, output: str) -> dict[str, str]:
    return {"instruction": instruction, "input": asked_about, "output": output}


def _reference_outputs(source: Path | None) -> list[dict[str, Any]]:
    path = download(TASK.source, TASK.source.files[0]) if source is None else _in_mirror(source, OUTPUT_NAMES)
    if path is None:
        raise UsageError(f"{source} has no {OUTPUT_NAMES[0]}: an AlpacaEval mirror must have the reference's outputs")
    rows = read_json(path)
    try:
        digest = digest_of([(row["instruction"], row["output"]) for row in rows])
        found = [
            {"instruction": row["instruction"], "dataset": row.get("dataset", ""), "reference": row["output"]}
            for row in rows
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} has no list of instructions and outputs") from error
    if digest != OUTPUTS_DIGEST:
        raise IntegrityError(f"{path} does not have the published outputs of gpt4_1106_preview: get a clean copy")
    return found


def _training_rows(source: Path | None) -> list[dict[str, str]] | None:
    """Returns the first rows of tatsu-lab/alpaca; None if the mirror lacks them."""
    if source is None:
        import pandas as pd

        rows = pd.read_parquet(download(TRAINING, TRAINING.files[0])).head(TRAIN_ROWS).to_dict("records")
    elif (path := _in_mirror(source, TRAINING_NAMES)) is None:
        return None
    elif ".jsonl" in path.suffixes:
        rows = [json.loads(line) for line in io.StringIO(_text_of(path))]
    else:
        rows = read_json(path)
    found = [_training_row(row["instruction"], row.get("input", ""), row["output"]) for row in rows[:TRAIN_ROWS]]
    # The reference's further names, so that an agent written for it finds what it looks for.
    return [
        row | {"question": "\n\n".join(filter(None, (row["instruction"], row["input"]))), "answer": row["output"]}
        for row in found
    ]


def _in_mirror(source: Path, names: Sequence[str]) -> Path | None:
    paths = (source / f"{name}{packed}" for name in names for packed in ("", ".xz"))
    return next((path for path in paths if path.is_file()), None)


def _gamed(exercises: Sequence[mini.Exercise]) -> str:
    """Returns the mini variant's df_gamed.csv: the judge's preferences for shortened and lengthened references.

    It has the columns of the published file, which is about GPT-4 asked to be concise and to be verbose. A rule knows
    no difficulty of an instruction, so its length is used instead.
    """
    lengths = [len(each.instruction) for each in exercises]
    mean, spread = statistics.mean(lengths), statistics.pstdev(lengths)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("model", "index", "preference", "std_delta_len", "instruction_difficulty", "not_gamed_baseline"))
    for name, game in (("concise", _shortened), ("verbose", _lengthened)):
        outputs = [game(each.reference) for each in exercises]
        differences = [len(each.reference) - len(output) for each, output in zip(exercises, outputs, strict=True)]
        unit = statistics.stdev(differences)
        for index, (each, output, difference) in enumerate(zip(exercises, outputs, differences, strict=True)):
            difficulty = (lengths[index] - mean) / spread
            preferred = preference(each.instruction, each.reference, output)
            table.writerow((name, index, preferred, round(difference / unit, 6), round(difficulty, 6), False))
    return text.getvalue()


def _shortened(text: str) -> str:
    words = text.split()
    return " ".join(words[: max(1, len(words) - 2)])


def _lengthened(text: str) -> str:
    return f"{text} {text}"
