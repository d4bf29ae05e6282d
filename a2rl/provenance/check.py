"""The checks of a run that look at weights: where the result comes from, and how many different tries there were.

Copies of the base model, or of each other, are one try: whoever submits the same model again and again with a little
noise gets the best of many draws, without training.

A checkpoint is compared with its base model, tensor by tensor, from the safetensors files alone. Only drawn rows are
read, unless rows are not where they should be; then some tensors are read as a whole, to find out whether rows or
columns were permuted or scaled. No model is loaded and nothing in the checkpoint is executed.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import yaml
from threadpoolctl import threadpool_limits

from a2rl.core.errors import A2rlError
from a2rl.core.settings import Settings
from a2rl.models.base_model import local_folder
from a2rl.models.checkpoint import Tensor, tensors_of
from a2rl.models.tensor_names import find_embedding, find_head
from a2rl.provenance.kinds import Kin, Kind, Provenance, classify
from a2rl.provenance.trace import (
    FITTED,
    RECOGNISED,
    ROWS,
    Arrangement,
    Columns,
    Sample,
    Trace,
    is_readable,
    matrix_shape,
    sample,
    trace_in_place,
    undo_both,
    undo_columns,
    undo_rows,
)
from a2rl.run.ledger import grades_among
from a2rl.scoring.paired import LEVEL, corrected
from a2rl.scoring.paired import compare as paired
from a2rl.validity.checks import NOT_CHECKED, RunEvidence
from a2rl.validity.record import Evidence, Finding, Level

PROBES = 12
"""The number of tensors in which rearrangements are looked for first; if none has one, the others are not searched."""


def compare(checkpoint: Path, base: Path, digest: str, known: Mapping[str, Path] = MappingProxyType({})) -> Provenance:
    """Says where a checkpoint comes from.

    Args:
        checkpoint: The grader's copy of a checkpoint, whose tensors have the base model's names.
        digest: The digest of the checkpoint's weights, which decides what is drawn.
        known: Folders of other models with which it is compared, by name.

    Raises:
        InvalidSubmissionError: The files are not valid.
    """
    # On matrices as small as the samples, threads cost more than they bring.
    with threadpool_limits(1, user_api="blas"):
        return _Comparison(tensors_of(checkpoint), tensors_of(base), digest).run(known)


class _Comparison:
    """The tensors of a checkpoint and of its base model."""

    def __init__(self, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], digest: str) -> None:
        self._digest, self._tensors = digest, tensors
        self._base = {name: tensor for name, tensor in base.items() if self._is_comparable(name, tensor)}
        self._left_out = len(tensors) - len(self._base)
        names = (find_embedding(self._base), find_head(self._base))
        self._vocabulary = frozenset(name for name in names if name)
        """The tensors whose rows the tokenizer fixes."""

    def _is_comparable(self, name: str, tensor: Tensor) -> bool:
        if (other := self._tensors.get(name)) is None:
            return False
        return is_readable(tensor) and is_readable(other) and matrix_shape(other) == matrix_shape(tensor)

    def run(self, known: Mapping[str, Path]) -> Provenance:
        kin = Kin(known)
        traces: dict[str, Trace] = {}
        for name, base in self._base.items():
            found = self._sample(name)
            traces[name] = trace_in_place(name, found, base)
            if traces[name].kept is not None:
                kin.add(name, found, base)
        traces |= self._rearranged(traces)
        return classify(tuple(traces.values()), kin.relatives(), self._vocabulary, self._left_out)

    def _sample(self, name: str, count: int = ROWS) -> Sample:
        return sample(name, self._tensors[name], self._base[name], self._digest, count)

    def _rearranged(self, traces: Mapping[str, Trace]) -> dict[str, Trace]:
        """Returns the traces of tensors whose rows are not in place, after rearrangements were looked for."""
        lost = [trace for trace in traces.values() if trace.kept is not None and trace.kept < RECOGNISED]
        hidden = self._hidden_columns(traces)
        probed = {trace.name: self._undo(trace, hidden) for trace in lost[:: max(1, len(lost) // PROBES)]}
        rest = [trace for trace in lost if trace.name not in probed]
        if any(trace.is_rearranged for trace in probed.values()):
            return probed | {trace.name: self._undo(trace, hidden) for trace in rest}
        return probed | {trace.name: trace._replace(arrangement=Arrangement.NOT_FOUND) for trace in rest}

    def _hidden_columns(self, traces: Mapping[str, Trace]) -> Columns | None:
        """Returns how the model's hidden dimensions are rearranged, which shows in the columns of the embedding."""
        for name in sorted(self._vocabulary):
            if name in traces and (traces[name].kept or 0.0) < RECOGNISED:
                _, columns = undo_columns(traces[name], self._sample(name, FITTED))
                if columns is not None:
                    return columns
        return None

    def _undo(self, trace: Trace, hidden: Columns | None) -> Trace:
        best = max(self._attempts(trace, hidden), key=lambda each: each.kept or 0.0)
        return best if best.is_rearranged else trace._replace(arrangement=Arrangement.NOT_FOUND)

    def _attempts(self, trace: Trace, hidden: Columns | None) -> Iterable[Trace]:
        tensor, base = self._tensors[trace.name], self._base[trace.name]
        yield undo_columns(trace, self._sample(trace.name, FITTED))[0]
        if trace.name in self._vocabulary:
            return
        rows, width = matrix_shape(base)
        fits = hidden is not None and len(hidden.order) == width
        yield undo_rows(trace, tensor, base, self._digest, hidden if fits else None)
        if hidden is not None and len(hidden.order) == rows:
            yield undo_both(trace, tensor, base, self._digest, hidden)


LIMIT_S = 120.0
"""When this time is over, the other submissions are not compared."""
NEARER = 0.5
"""A copy is nearer to its original than to the base model, by this factor."""


class Tries(NamedTuple):
    """The submissions of a run, in groups of copies."""

    of_base: tuple[str, ...]
    """The digests of copies of the base model."""
    groups: tuple[tuple[str, ...], ...]
    """The digests of the others; those in one group are copies of each other."""
    not_compared: int
    """The number of submissions for which there was no time, or not enough to compare them with all others."""

    @property
    def effective(self) -> int:
        """The number of different tries."""
        return len(self.groups) + bool(self.of_base)


def count_tries(folders: Mapping[str, Path], base: Path, *, better: Collection[str] = ()) -> Tries:
    """Groups checkpoints. Each is compared with the base model and with the one before it; in the time that is left,
    the groups are compared with each other, because copies may be submitted in turn.

    Args:
        folders: The folders of distinct checkpoints by digest, in the order of submission.
        better: The digests of those whose scores show that they are no copies of the base model: noise improves none.
    """
    deadline = time.monotonic() + LIMIT_S
    of_base: list[str] = []
    in_turn: list[list[str]] = []
    groups: list[list[str]] = []
    trained: dict[str, Provenance] = {}

    def has_copy(group: list[str], digest: str) -> bool:
        """Returns whether a checkpoint is a group's last one with noise that is small beside what training changed."""
        from_last = compare(folders[digest], folders[group[-1]], digest)
        return from_last.is_copy and from_last.delta < NEARER * trained[digest].delta

    for digest in folders:
        if time.monotonic() > deadline:
            break
        found = trained[digest] = compare(folders[digest], base, digest)
        if found.is_copy and not (found.may_be_trained and digest in better):
            of_base.append(digest)
        elif in_turn and has_copy(in_turn[-1], digest):
            in_turn[-1].append(digest)
        else:
            in_turn.append([digest])
    not_compared = len(folders) - len(trained)
    for later in in_turn:
        earlier = (group for group in reversed(groups) if time.monotonic() < deadline and has_copy(group, later[0]))
        if (first := next(earlier, None)) is not None:
            first += later
        else:
            not_compared += len(later) if time.monotonic() > deadline else 0
            groups.append(later)
    return Tries(tuple(of_base), tuple(map(tuple, groups)), not_compared)


LIST = Path(__file__).with_name("known_models.yaml")


class KnownModels(NamedTuple):
    """Models with which checkpoints of one base model are compared."""

    here: Mapping[str, Path]
    """The folders of those on this machine, by name."""
    elsewhere: tuple[str, ...]
    """The names of the others. They are not compared."""


def known_models(base: str, settings: Settings) -> KnownModels:
    """Returns the known models for a base model, which is named as a run's settings have it."""
    text = LIST.read_text(encoding="utf-8")
    names = [row["known"] for row in yaml.safe_load(text) if row["base"] == base.partition("@")[0]]
    folders = {name: _checkpoint(local_folder(name, settings)) for name in names}
    here = {name: folder for name, folder in folders.items() if folder is not None}
    return KnownModels(here, tuple(name for name in names if name not in here))


def _checkpoint(folder: Path | None) -> Path | None:
    """Returns the folder if it has weights."""
    try:
        return folder if folder and folder.is_dir() and tensors_of(folder) else None
    except (A2rlError, OSError):
        return None


LEVELS: dict[Kind, Level] = {
    Kind.FOREIGN: "void",
    Kind.PART_FOREIGN: "flag",
    Kind.SIBLING: "flag",
    Kind.MERGE: "flag",
    Kind.NEAR_COPY: "flag",
    Kind.UNKNOWN: "flag",
    Kind.BASE: "flag",
    Kind.DESCENDANT: "note",
}
SAYS: dict[Kind, str] = {
    Kind.FOREIGN: "The checkpoint was not trained from the base model.",
    Kind.PART_FOREIGN: "Parts of the checkpoint do not come from the base model.",
    Kind.SIBLING: "The checkpoint descends from another known model, not from the agent's training alone.",
    Kind.MERGE: "The checkpoint is a merge with known models.",
    Kind.NEAR_COPY: "The checkpoint is the base model with noise, rounding or rearranged weights, not a trained one.",
    Kind.UNKNOWN: "Where the checkpoint comes from could not be told from its weights.",
    Kind.BASE: "The checkpoint is the base model, as good as unchanged.",
    Kind.DESCENDANT: "The checkpoint was trained from the base model.",
}
TRAINED_ALL_THE_SAME = (
    "The checkpoint differs from the base model by what looks like noise or mere factors, but is better than it, so it "
    "was trained: these do not improve a model."
)
"""Some optimisers, such as Muon and evolution strategies, change weights in all directions alike; (IA)^3 trains
factors."""
TRAINED_A_LITTLE = (
    "The checkpoint hardly differs from the base model, but is better than it, so it was trained: RL at the usual "
    "rates changes weights as little."
)
TENSORS_SHOWN = 12
MANY_COPIES = 3
"""From so many copies on, a run is said to have many."""


def provenance(evidence: RunEvidence) -> Iterator[Finding]:
    """Compares the weights of the submission that counts with the base model's."""
    if evidence.best is None or evidence.setup is None:
        return
    digest = evidence.best.submission.weights_digest
    folder = evidence.run.checkpoint(digest)
    if not folder.is_dir():
        text = "The weights of the result were not compared with the base model's, because they were removed."
        yield Finding.of(NOT_CHECKED, "note", text, Evidence(what="the setting keep", value=evidence.run.spec.keep))
        return
    known = known_models(evidence.run.spec.model, evidence.settings)
    found = compare(folder, evidence.base_model, digest, known.here)
    kind, says = found.kind, SAYS[found.kind]
    if found.may_be_trained and evidence.grade.verdict == "improved":
        kind, says = Kind.DESCENDANT, TRAINED_A_LITTLE if kind is Kind.BASE else TRAINED_ALL_THE_SAME
    name = f"provenance-{kind.replace(' ', '-')}"
    text = f"{says} {found.why[:1].upper()}{found.why[1:]}."
    yield Finding.of(name, LEVELS[kind], text, *_seen(found, known, digest))


def _seen(found: Provenance, known: KnownModels, digest: str) -> Iterator[Evidence]:
    """Yields what was measured."""
    figures = {
        "share of rows that are nearest to their own base row": found.kept,
        "relative delta, median of the matrices": found.delta,
        "roughness of the difference (noise: 1)": found.roughness,
        "tensors that could not be compared": found.left_out,
    }
    for what, value in figures.items():
        rounded = round(value, 4) if isinstance(value, float) else value
        yield Evidence(what=what, value=rounded, digest=digest)
    for name in found.foreign[:TENSORS_SHOWN]:
        yield Evidence(what="a foreign tensor", value=name)
    for each in found.relatives.each:
        text = f"{each.name}: cosine {each.cosine:.3f}, part {each.part:.3f}"
        yield Evidence(what="a known model beside it", value=text)
    if known.elsewhere:
        yield Evidence(what="known models that are not on this machine, so not compared", value=list(known.elsewhere))


def tries(evidence: RunEvidence) -> Iterator[Finding]:
    """Counts how many different tries the submissions are."""
    folders = _folders(evidence)
    gone = len({event.weights_digest for event in evidence.accepted}) - len(folders)
    if evidence.setup is not None and gone >= MANY_COPIES:
        text = f"{gone} submissions were removed when they were graded, so whether they are copies was not checked."
        yield Finding.of(NOT_CHECKED, "note", text, Evidence(what="the setting keep", value=evidence.run.spec.keep))
    if evidence.setup is None or len(folders) < MANY_COPIES:
        return
    found = count_tries(folders, evidence.base_model, better=_better_than_base(evidence))
    copies = len(found.of_base) + sum(len(group) - 1 for group in found.groups)
    if copies < MANY_COPIES:
        if found.not_compared:
            text = f"There was no time to say of {found.not_compared} submissions whether they are copies."
            yield Finding.of(NOT_CHECKED, "note", text)
        return
    text = (
        f"{copies} of the {len(folders)} submissions are copies of the base model or of each other with noise; those "
        f"that were compared are {found.effective} different tries."
    )
    yield Finding.of("many-near-copies", "flag", text, *_groups(found))


def _better_than_base(evidence: RunEvidence) -> set[str]:
    """Returns the digests of submissions that are better than the base model on the items whose score the agent is
    told, by the test that decides the verdict. Noise alone is not better, however often it is tried."""
    split = evidence.run.spec.public_split
    graded = {digest: evidence.items(digest, split) for digest in grades_among(evidence.entries)}
    level = corrected(LEVEL, len(graded))
    gains = {digest: paired(evidence.baseline_items, items, level) for digest, items in graded.items() if items}
    return {digest for digest, gain in gains.items() if gain and gain.ci.low > 0}


def _folders(evidence: RunEvidence) -> dict[str, Path]:
    """Returns the kept checkpoints by digest, in the order of submission."""
    digests = dict.fromkeys(event.weights_digest for event in evidence.accepted)
    folders = {digest: evidence.run.checkpoint(digest) for digest in digests}
    return {digest: folder for digest, folder in folders.items() if folder.is_dir()}


def _groups(found: Tries) -> Iterator[Evidence]:
    for digest in found.of_base[:TENSORS_SHOWN]:
        yield Evidence(what="a copy of the base model", digest=digest)
    for group in found.groups:
        if len(group) > 1:
            yield Evidence(what="copies of one checkpoint", value=[digest[:16] for digest in group])
    if found.not_compared:
        yield Evidence(
            what="submissions that were not compared with all others, for lack of time", value=found.not_compared
        )
