"""Prefixes that conversations share, such as the worked examples in front of every question of an eval set.

What many prompts begin with is read once, and its keys and values are kept once. Prefixes form a tree: the prompts of
an interactive task begin with the same rules, and those of each kind of episode with their own examples after that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

SHORTEST = 64
"""A prefix of fewer tokens is not worth a separate piece of attention in every layer."""


@dataclass(slots=True, eq=False)
class Prefix:
    """Tokens that prompts have in common, after those of its parent."""

    parent: "Prefix | None"
    tokens: list[int]
    start: int
    """The position of its first token."""
    order: int
    """Its place among all prefixes, parents first; prompts with neighbouring prefixes have more in common."""
    children: list["Prefix"] = field(default_factory=list)
    layers: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """Its keys and values [1, H, tokens, D] in every layer; empty until it is read."""

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + len(self.tokens)

    @property
    def columns(self) -> slice:
        """Where it lies among the shared columns of a row."""
        return slice(self.start, self.end)

    @property
    def chain(self) -> list["Prefix"]:
        """All prefixes of a prompt that has this one, the first one first."""
        return [*(self.parent.chain if self.parent else []), self]


class Prefixes:
    """The shared prefixes of a set of prompts."""

    def __init__(self, prompts: Sequence[list[int]], worth: int | None) -> None:
        """Finds them.

        Args:
            prompts: The tokens of each prompt. The last one is never shared: its logits belong to the prompt.
            worth: A prefix is shared if that saves reading at least so many tokens; None shares nothing.
        """
        self._all: list[Prefix] = []
        self._roots: list[Prefix] = []
        if worth is not None:
            self._find(sorted(prompt[:-1] for prompt in prompts), worth)

    def __iter__(self) -> Iterator[Prefix]:
        return iter(self._all)

    def of(self, prompt: list[int]) -> Prefix | None:
        """Returns the longest shared prefix of a prompt."""
        found, candidates = None, self._roots
        while candidates:
            longer = next((each for each in candidates if prompt[each.start : each.end] == each.tokens), None)
            if longer is None or longer.end == len(prompt):
                break
            found, candidates = longer, longer.children
        return found

    def _find(self, prompts: list[list[int]], worth: int) -> None:
        """Builds the tree from sorted prompts, in which those with a common prefix are neighbours."""
        groups: list[tuple[list[list[int]], Prefix | None]] = [(prompts, None)]
        while groups:
            group, parent = groups.pop()
            if len(group) < 2:
                continue
            start, common = parent.end if parent else 0, common_prefix(group[0], group[-1])
            length = common - start
            if length >= SHORTEST and (len(group) - 1) * length >= worth:
                parent = self._add(parent, group[0][start:common])
            groups += [(part, parent) for part in reversed(_parted(group, common))]

    def _add(self, parent: Prefix | None, tokens: list[int]) -> Prefix:
        prefix = Prefix(parent, tokens, parent.end if parent else 0, len(self._all))
        self._all.append(prefix)
        (parent.children if parent else self._roots).append(prefix)
        return prefix


def common_prefix(left: list[int], right: list[int]) -> int:
    """Returns how many tokens two prompts have in common at their beginning."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next(index for index in range(shorter) if left[index] != right[index])


def _parted(group: list[list[int]], position: int) -> list[list[list[int]]]:
    """Splits sorted prompts by their token at a position; those that end there are left out."""
    parts: list[list[list[int]]] = []
    token = None
    for prompt in group:
        if len(prompt) == position:
            continue
        if not parts or prompt[position] != token:
            parts.append([])
        token = prompt[position]
        parts[-1].append(prompt)
    return parts
