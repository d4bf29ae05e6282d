"""Measures how well the kinds of checkpoints are told apart: a confusion table over models that set no threshold.

python -m tests.provenance_table                    # more than 100 models: 2 to 15 minutes on two cores
python -m tests.provenance_table smollm2 --into FILE   # a part of them; FILE collects the outcomes of several parts
python -m tests.provenance_table --calibrate        # the models from which the thresholds were chosen
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from transformers.utils import logging

from a2rl.core.files import read_jsonl
from a2rl.core.settings import Settings
from a2rl.models.base_model import local_folder
from a2rl.models.checkpoint import weights_digest
from a2rl.provenance.check import compare
from a2rl.provenance.kinds import Kind, Provenance
from tests import provenance_models as make
from tests.model_families import FAMILIES
from tests.provenance_models import Origin, State

HONEST = "honest training"
ALARMS = (Kind.NEAR_COPY, Kind.SIBLING, Kind.MERGE, Kind.PART_FOREIGN, Kind.FOREIGN)
TEXTS = 1500


class Case(NamedTuple):
    """A checkpoint to be made, and the kinds that it may be taken for."""

    what: str
    """Its row in the table."""
    detail: str
    made: Callable[[], State]
    expected: frozenset[Kind]
    dtype: torch.dtype | None = None


class Scene(NamedTuple):
    """A base model, known models beside it, and the checkpoints that are compared with it."""

    name: str
    origin: Origin
    known: Mapping[str, State]
    cases: list[Case]


class Outcome(NamedTuple):
    """What one checkpoint was taken for."""

    scene: str
    what: str
    detail: str
    kind: str
    is_right: bool
    figures: str

    def __str__(self) -> str:
        word = "" if self.is_right else "WRONG "
        return f"{word}{self.scene} | {self.what}: {self.detail} | {self.kind} | {self.figures}"


def texts(task: str) -> tuple[str, ...]:
    """Returns documents in the manner of a task."""
    path = Settings.load().root / "data" / "pretraining" / f"{task}.jsonl"
    return tuple(row["text"] for row in read_jsonl(path)[:TEXTS])


def _honest(detail: str, made: Callable[[], State], dtype: torch.dtype | None = None) -> Case:
    # A run that trains hardly at all leaves the base model. It is flagged unless its score is better.
    return Case(HONEST, detail, made, frozenset({Kind.DESCENDANT, Kind.BASE}), dtype)


def _other(what: str, detail: str, made: Callable[[], State], *kinds: Kind, dtype: torch.dtype | None = None) -> Case:
    return Case(what, detail, made, frozenset(kinds), dtype)


def training(origin: Origin, rates: tuple[float, ...], steps: tuple[int, ...], seed: int) -> Iterator[Case]:
    """Yields full fine-tunes, short and long, with low and high rates."""
    for rate in rates:
        for count in steps:
            yield _honest(f"full fine-tune, rate {rate:g}, {count} steps", partial(origin.tuned, rate, count, seed))


def adapters(origin: Origin, steps: int, seed: int, ranks: tuple[int, ...] = (2, 8, 16)) -> Iterator[Case]:
    """Yields merged LoRA adapters."""
    for rank in ranks:
        for rate in (1e-4, 2e-3):
            yield _honest(f"LoRA of rank {rank}, rate {rate:g}", partial(origin.adapted, rate, steps, seed, rank))


def reinforcement(origin: Origin, rates: tuple[float, ...], steps: int, seed: int) -> Iterator[Case]:
    """Yields updates by GRPO."""
    for rate in rates:
        yield _honest(f"GRPO, rate {rate:g}, {steps} steps", partial(origin.reinforced, rate, steps, seed))


def copies(origin: Origin, seed: int) -> Iterator[Case]:
    """Yields the base model, noisy, rounded and rearranged."""
    base = make.stored_state(origin.base)
    yield _other("the base model", "as it is", lambda: base, Kind.BASE)
    for size in (3e-3, 2e-2, 0.1):
        yield _other("base plus noise", f"{size:g}", partial(make.noisy, base, size, seed), Kind.NEAR_COPY)
    for bits in (8, 4):
        yield _other("quantised and back", f"{bits} bits", partial(make.rounded, base, bits), Kind.NEAR_COPY)
    if any("gate_proj" in name for name in base):
        yield _other("permuted", "neurons", lambda: make.neurons_permuted(base, seed), Kind.NEAR_COPY)
        yield _other("permuted", "hidden dimensions", lambda: make.hidden_permuted(base, seed), Kind.NEAR_COPY)
        both = lambda: make.neurons_permuted(make.hidden_permuted(base, seed), seed)  # noqa: E731
        yield _other("permuted", "both", both, Kind.NEAR_COPY)
        yield _other("scaled", "neurons", lambda: make.scaled(base, seed), Kind.NEAR_COPY)
        yield _other("scaled", "norms", lambda: make.norms_folded(base, seed), Kind.NEAR_COPY)


def strangers(origin: Origin, seed: int, steps: int) -> Iterator[Case]:
    """Yields models that share nothing with the base model, and some that share a part of it."""
    base = make.stored_state(origin.base)
    inner = [name for name in make.matrices(base, "layers") if min(base[name].shape) >= 8]
    first = [name for name in inner if ".0." in name]
    yield _other("foreign", "random weights", lambda: origin.foreign(seed), Kind.FOREIGN)
    yield _other("foreign", f"trained {steps} steps", lambda: origin.foreign(seed + 1, steps), Kind.FOREIGN)
    mixed = lambda: {**origin.foreign(seed + 2), **{name: base[name] for name in base if "embed" in name}}  # noqa: E731
    yield _other("foreign", "with the base model's embedding", mixed, Kind.FOREIGN)
    one = lambda: make.reinitialised(base, inner[-1:], seed)  # noqa: E731
    yield _other("re-initialised layers", "one matrix", one, Kind.PART_FOREIGN)
    layer = lambda: make.reinitialised(base, first[: len(inner) // 2 - 1], seed)  # noqa: E731
    yield _other("re-initialised layers", "the first layer", layer, Kind.PART_FOREIGN)
    trained = lambda: origin.tuned(1e-4, 5, seed, make.reinitialised(base, inner[:1], seed))  # noqa: E731
    yield _other("re-initialised layers", "one matrix, then trained", trained, Kind.PART_FOREIGN)


def relatives(origin: Origin, known: Mapping[str, State], seed: int, steps: int) -> Iterator[Case]:
    """Yields siblings, merges of them, and merges of checkpoints of one's own."""
    base, (first, second) = make.stored_state(origin.base), known.values()
    yield _other("sibling", "as it is", lambda: dict(first), Kind.SIBLING)
    for rate in (1e-5, 1e-4, 5e-4):
        yield _other("sibling", f"trained at {rate:g}", partial(origin.tuned, rate, steps, seed, first), Kind.SIBLING)
    yield _other("sibling", "the other, rounded", lambda: make.rounded(second, 8), Kind.SIBLING)
    for share in (0.3, 0.5):
        yield _other("merge", f"{share:g} of one", partial(make.mixed, [(share, first), (1 - share, base)]), Kind.MERGE)
    yield _other("merge", "of two", lambda: make.mixed([(0.5, first), (0.5, second)]), Kind.MERGE)
    yield _other("merge", "of three", lambda: make.mixed([(0.3, first), (0.4, second), (0.3, base)]), Kind.MERGE)
    soup = lambda: make.mixed([(0.5, origin.tuned(1e-3, steps, n, None)) for n in (seed, seed + 1)])  # noqa: E731
    yield _honest("mean of two checkpoints of one's own", soup)


def _tiny(task: str, seed: int) -> tuple[Origin, dict[str, State]]:
    """Returns `tiny` with the texts of a task, and two models that are known beside it."""
    folder = Settings.load().models / "tiny"
    made_from = (Origin(folder, texts(other)) for other in ("webshop", "alfworld"))
    known = {f"instruct-{place}": each.tuned(1e-3, 80, 100 + seed) for place, each in enumerate(made_from)}
    return Origin(folder, texts(task)), known


def tiny_trained(task: str, seed: int) -> Iterator[Scene]:
    """Yields the base model `tiny`, trained on the texts of a task."""
    origin, known = _tiny(task, seed)
    cases = [
        *training(origin, (1e-5, 1e-4, 1e-3, 5e-3), (5, 30), seed),
        _honest("continued pretraining, rate 0.001, 100 steps", partial(origin.tuned, 1e-3, 100, seed)),
        _honest("full fine-tune in bfloat16, rate 0.0003", partial(origin.tuned, 3e-4, 30, seed), torch.bfloat16),
        *adapters(origin, 20, seed),
        *reinforcement(origin, (1e-6, 1e-5, 1e-4), 6, seed),
        *(_honest(f"Muon, {count} steps", partial(origin.orthogonalised, 3e-3, count, seed)) for count in (5, 50, 300)),
    ]
    yield Scene(f"tiny, {task}", origin, known, cases)


def tiny_others(task: str, seed: int) -> Iterator[Scene]:
    """Yields copies of `tiny`, strangers and relatives."""
    origin, known = _tiny(task, seed)
    cases = [*copies(origin, seed), *strangers(origin, seed, 60), *relatives(origin, known, seed, 25)]
    yield Scene("tiny", origin, known, cases)


def family_scene(name: str, seed: int, folder: Path) -> Iterator[Scene]:
    """Yields a randomly initialised base model in the layout of a family."""
    origin = Origin(FAMILIES[name].build(folder / name), texts("gsm8k")[:200], torch.bfloat16)
    cases = [
        *training(origin, (1e-3, 1e-2), (40,), seed),
        *adapters(origin, 30, seed, (4,)),
        *reinforcement(origin, (1e-3,), 4, seed),
        *list(copies(origin, seed))[1:],
        *list(strangers(origin, seed, 20))[:4],
    ]
    yield Scene(name, origin, {}, cases)


def smollm2_scene(seed: int) -> Iterator[Scene]:
    """Yields the real base model, if it is on this machine (`a2rl models get smollm2-135m`)."""
    folder = local_folder("smollm2-135m", Settings.load())
    if folder is None or not folder.is_dir():
        return
    origin = Origin(folder, texts("gsm8k")[:100], torch.bfloat16)
    cases = [
        _honest("full fine-tune, rate 2e-5, 6 steps", lambda: origin.tuned(2e-5, 6, seed, None, 2)),
        _honest("full fine-tune, rate 1e-3, 3 steps", lambda: origin.tuned(1e-3, 3, seed, None, 2)),
        _honest("LoRA of rank 8, rate 2e-3", lambda: origin.adapted(2e-3, 3, seed, 8)),
        *list(copies(origin, seed)),
        *list(strangers(origin, seed, 0))[::2],
        *list(strangers(origin, seed, 0))[3:4],
    ]
    yield Scene("smollm2-135m", origin, {}, cases)


def outcomes(scenes: Iterable[Scene], folder: Path) -> Iterator[Outcome]:
    """Makes every checkpoint, one at a time, and compares it with its base model."""
    for scene in scenes:
        known = {name: scene.origin.save(state, folder / name) for name, state in scene.known.items()}
        for case in scene.cases:
            checkpoint = scene.origin.save(case.made(), folder / "checkpoint", case.dtype)
            found = compare(checkpoint, scene.origin.base, weights_digest(checkpoint), known)
            yield Outcome(scene.name, case.what, case.detail, found.kind, found.kind in case.expected, _figures(found))


def _figures(found: Provenance) -> str:
    lowest = min((trace.kept for trace in found.traces if trace.kept is not None), default=0.0)
    highest = max((each.cosine for each in found.relatives.each), default=0.0)
    rough = "-" if found.roughness is None else f"{found.roughness:.2f}"
    return (
        f"kept at least {lowest:.2f}, delta {found.delta:.4f}, roughness {rough}, nearest known {highest:.2f},"
        f" explained {found.relatives.explained:.2f}"
    )


def table(found: Sequence[Outcome]) -> str:
    """Returns the confusion table, and the rate of false alarms, in Markdown."""
    kinds = [kind for kind in Kind if any(each.kind == kind for each in found)]
    rows = [f"| made as | models | {' | '.join(kinds)} | right |", f"|---|{'---|' * (len(kinds) + 2)}"]
    for what in dict.fromkeys(each.what for each in found):
        chosen = [each for each in found if each.what == what]
        counts = Counter(each.kind for each in chosen)
        cells = " | ".join(str(counts[kind] or "") for kind in kinds)
        rows.append(f"| {what} | {len(chosen)} | {cells} | {sum(each.is_right for each in chosen)} |")
    honest = [each for each in found if each.what == HONEST]
    alarms = sum(each.kind in ALARMS for each in honest)
    same = sum(each.kind == Kind.BASE for each in honest)
    rows.append(f"\nfalse alarms: {alarms} of {len(honest)} honest models; {len(found)} models in all")
    rows.append(f"honest models that are flagged as `base`, unless their scores are better: {same}")
    return "\n".join(rows)


Scenes = dict[str, Callable[[], Iterable[Scene]]]


def calibration(folder: Path) -> Scenes:
    """Returns what makes the scenes from which the thresholds were chosen, by name."""
    families = ("qwen2.5-0.5b", "olmo-2")
    return {
        "tiny-trained": partial(tiny_trained, "gsm8k", 1),
        "tiny-others": partial(tiny_others, "gsm8k", 1),
        **{name: partial(family_scene, name, 1, folder) for name in families},
    }


def measured(folder: Path) -> Scenes:
    """Returns what makes the scenes on which the errors are measured, by name."""
    families = ("qwen3-0.6b", "llama-3.2-1b", "mistral-v0.3", "gemma-3-270m", "smollm3")
    return {
        "tiny-others": partial(tiny_others, "humaneval", 50),
        **{name: partial(family_scene, name, 50, folder) for name in families},
        "tiny-trained": partial(tiny_trained, "humaneval", 51),
        "tiny-more": partial(tiny_trained, "alpacaeval", 52),
        "smollm2": partial(smollm2_scene, 50),
    }


def main() -> None:
    """Prints one line for each model, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", help=f"some of them: {', '.join(measured(Path()))}")
    parser.add_argument("--calibrate", action="store_true", help="the models from which the thresholds were chosen")
    parser.add_argument("--into", type=Path, help="a file to which the outcomes are added; the table is of all in it")
    chosen = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # so small a model trains as fast, and does not suffer from other work on the machine
    started, found = time.monotonic(), _earlier(chosen.into)
    with tempfile.TemporaryDirectory() as place:
        scenes = (calibration if chosen.calibrate else measured)(Path(place))
        for name in chosen.scenes or scenes:
            for outcome in outcomes(scenes[name](), Path(place) / "made"):
                found.append(outcome)
                _say(str(outcome), chosen.into, outcome)
    _say(table(found))
    _say(f"{time.monotonic() - started:.0f} s")


def _earlier(file: Path | None) -> list[Outcome]:
    return [Outcome(**row) for row in read_jsonl(file)] if file and file.exists() else []


def _say(line: str, file: Path | None = None, outcome: Outcome | None = None) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    if file and outcome:
        with file.open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(outcome._asdict()) + "\n")


if __name__ == "__main__":
    main()
