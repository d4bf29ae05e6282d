"""The isolation of an agent: the kind of its sandbox and the layers in force, as typed values.

The pipeline selects it at each start of an agent (a2rl/sandbox/selection.py), from what the machine supports. Records
keep it for reports only; no record decides what an agent may do.
"""

from collections.abc import Iterable
from typing import Literal, get_args

from a2rl.core.files import StrictModel

SandboxKind = Literal["landlock", "bwrap", "none"]
Layer = Literal["landlock", "scopes", "seccomp", "broker", "user", "devices", "processes", "file system"]
LAYERS: dict[Layer, str] = {
    "landlock": "Landlock: it can access only the files that it is given",
    "scopes": "Landlock scopes: it can signal no process outside",
    "seccomp": "seccomp: no system calls that lead outside, and no capabilities",
    "broker": "the broker: every connection is checked",
    "user": "its own user",
    "devices": "its own /dev/shm and terminals",
    "processes": "its own process table",
    "file system": "its own file system (bwrap)",
}
REQUIRED: dict[SandboxKind, tuple[Layer, ...]] = {
    "landlock": ("landlock", "seccomp", "broker"),
    "bwrap": ("file system", "devices", "processes", "seccomp", "broker"),
    "none": (),
}
SIGNAL_LAYERS: tuple[Layer, ...] = ("scopes", "user", "processes")
"""Each of these prevents an agent from signalling other processes; at least one is required."""


class Isolation(StrictModel):
    """The kind and the layers of an agent's sandbox."""

    kind: SandboxKind
    layers: tuple[Layer, ...] = ()

    @classmethod
    def of(cls, kind: SandboxKind, layers: Iterable[Layer]) -> "Isolation":
        """Makes an isolation with the layers in their canonical order."""
        chosen = set(layers)
        return cls(kind=kind, layers=tuple(layer for layer in get_args(Layer) if layer in chosen))

    @property
    def confines(self) -> bool:
        """Whether there is a sandbox; without one, nothing enforces that the agent stays in its workspace."""
        return self.kind != "none"

    @property
    def missing_layers(self) -> list[str]:
        """Descriptions of the layers that a sandbox of this kind requires and this one does not have."""
        if not self.confines:
            return []
        missing = [LAYERS[layer] for layer in REQUIRED[self.kind] if layer not in self.layers]
        if not set(SIGNAL_LAYERS) & set(self.layers):
            missing.append("a layer that prevents it from signalling other processes")
        return missing

    @property
    def details(self) -> str:
        """Descriptions of all layers."""
        return "; ".join(LAYERS[layer] for layer in self.layers)

    def __str__(self) -> str:
        """The kind, and which resources belong to the agent alone, as shown to people."""
        own = [layer for layer in ("user", "processes", "devices") if layer in self.layers]
        return f"{self.kind} (own {', '.join(own)})" if own else str(self.kind)


NONE = Isolation(kind="none")
