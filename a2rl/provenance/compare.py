"""Compares a checkpoint with its base model, tensor by tensor, from the safetensors files alone.

    provenance = compare(checkpoint, base, weights_digest, known={})
    provenance.kind, provenance.why

Only drawn rows are read, unless rows are not where they should be; then some tensors are read as a whole, to find out
whether rows or columns were permuted or scaled. No model is loaded and nothing in the checkpoint is executed.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from threadpoolctl import threadpool_limits

from a2rl.models.checkpoint import Tensor, tensors_of
from a2rl.models.tensor_names import find_embedding, find_head
from a2rl.provenance.kinds import Kin, Provenance, classify
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

PROBES = 12
"""The number of tensors in which rearrangements are looked for first; if none has one, the others are not searched."""

NOTHING_KNOWN: Mapping[str, Path] = MappingProxyType({})


def compare(checkpoint: Path, base: Path, digest: str, known: Mapping[str, Path] = NOTHING_KNOWN) -> Provenance:
    """Says where a checkpoint comes from.

    Args:
        checkpoint: The grader's copy of a checkpoint, whose tensors have the base model's names.
        digest: The digest of the checkpoint's weights, which decides what is drawn.
        known: Folders of other models with which it is compared, by name.

    Raises:
        InvalidSubmissionError: The files are not valid.
    """
    with threadpool_limits(
        1, user_api="blas"
    ):  # on matrices as small as the samples, threads cost more than they bring
        return _Comparison(tensors_of(checkpoint), tensors_of(base), digest).run(known)


class _Comparison:
    """The tensors of a checkpoint and of its base model."""

    def __init__(self, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], digest: str) -> None:
        self._digest, self._tensors = digest, tensors
        self._base = {name: tensor for name, tensor in base.items() if self._is_comparable(name, tensor)}
        self._left_out = len(tensors) - len(self._base)
        self._vocabulary = {find_embedding(self._base), find_head(self._base)}
        """The tensors whose rows the tokenizer fixes."""

    def _is_comparable(self, name: str, tensor: Tensor) -> bool:
        other = self._tensors.get(name)
        return (
            other is not None and is_readable(tensor) and is_readable(other)
            and matrix_shape(other) == matrix_shape(tensor)
        )  # fmt: skip

    def run(self, known: Mapping[str, Path]) -> Provenance:
        kin = Kin(known)
        traces: dict[str, Trace] = {}
        for name, base in self._base.items():
            found = self._sample(name)
            traces[name] = trace_in_place(name, found, base)
            if traces[name].kept is not None:
                kin.add(name, found, base)
        traces |= self._rearranged(traces)
        vocabulary = frozenset(name for name in self._vocabulary if name)
        return classify(tuple(traces.values()), kin.relatives(), vocabulary, self._left_out)

    def _sample(self, name: str, count: int = ROWS) -> Sample:
        return sample(name, self._tensors[name], self._base[name], self._digest, count)

    def _rearranged(self, traces: Mapping[str, Trace]) -> dict[str, Trace]:
        """Returns the traces of tensors whose rows are not in place, after rearrangements were looked for."""
        lost = [trace for trace in traces.values() if trace.kept is not None and trace.kept < RECOGNISED]
        hidden = self._hidden_columns(traces)
        probed = {trace.name: self._undo(trace, hidden) for trace in lost[:: max(1, len(lost) // PROBES)]}
        rest = [trace for trace in lost if trace.name not in probed]
        if any(trace.arrangement is not Arrangement.NOT_FOUND for trace in probed.values()):
            return probed | {trace.name: self._undo(trace, hidden) for trace in rest}
        return probed | {trace.name: trace._replace(arrangement=Arrangement.NOT_FOUND) for trace in rest}

    def _hidden_columns(self, traces: Mapping[str, Trace]) -> Columns | None:
        """Returns how the model's hidden dimensions are rearranged, which shows in the columns of the embedding."""
        for name in sorted(name for name in self._vocabulary if name):
            if name in traces and (traces[name].kept or 0.0) < RECOGNISED:
                _, columns = undo_columns(traces[name], self._sample(name, FITTED))
                if columns is not None:
                    return columns
        return None

    def _undo(self, trace: Trace, hidden: Columns | None) -> Trace:
        best = max(self._attempts(trace, hidden), key=lambda each: each.kept or 0.0, default=trace)
        if best.arrangement is not Arrangement.IN_PLACE:
            return best
        return trace._replace(arrangement=Arrangement.NOT_FOUND)

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
