"""How strong a sandbox is: its kind, and the layers that are in force, as typed values.

The pipeline decides it anew at each start of an agent (a2rl/isolation/decide.py), from what it asks of the machine.
Records keep it for reports; nothing decides by a record what an agent may do.
"""

from collections.abc import Iterable
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, model_validator

Sandbox = Literal["landlock", "bwrap", "none"]
Layer = Literal["landlock", "scopes", "seccomp", "broker", "user", "devices", "processes", "file system"]
LAYERS: dict[Layer, str] = {
    "landlock": "Landlock: of all files it reaches those that it is given",
    "scopes": "Landlock's scopes: it signals no process outside",
    "seccomp": "seccomp: it has no system calls that lead out, and no capabilities",
    "broker": "the broker: every connection is looked at",
    "user": "a user of its own",
    "devices": "/dev/shm and terminals of its own",
    "processes": "a table of processes of its own",
    "file system": "a file system of its own (bwrap)",
}
REQUIRED: dict[Sandbox, tuple[Layer, ...]] = {
    "landlock": ("landlock", "seccomp", "broker"),
    "bwrap": ("file system", "devices", "processes", "seccomp", "broker"),
    "none": (),
}
HOLD_SIGNALS: tuple[Layer, ...] = ("scopes", "user", "processes")
"""Each of these alone keeps an agent from ending or stopping processes that are not its own; one must be there."""


class Strength(BaseModel):
    """Which sandbox an agent has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Sandbox
    layers: tuple[Layer, ...] = ()

    @classmethod
    def of(cls, kind: Sandbox, layers: Iterable[Layer]) -> "Strength":
        """With the layers in their usual order."""
        chosen = set(layers)
        return cls(kind=kind, layers=tuple(layer for layer in get_args(Layer) if layer in chosen))

    @property
    def confines(self) -> bool:
        """If not, nothing but good manners keeps the agent in its workspace."""
        return self.kind != "none"

    @property
    def lacks(self) -> list[str]:
        """What a sandbox of this kind must have and this one has not, in words."""
        if not self.confines:
            return []
        missing = [LAYERS[layer] for layer in REQUIRED[self.kind] if layer not in self.layers]
        if not set(HOLD_SIGNALS) & set(self.layers):
            missing.append("something that keeps it from signalling processes of others")
        return missing

    @property
    def details(self) -> str:
        """All layers, in words."""
        return "; ".join(LAYERS[layer] for layer in self.layers)

    def __str__(self) -> str:
        """For people: the kind, and what the agent has of its own."""
        own = [layer for layer in ("user", "processes", "devices") if layer in self.layers]
        return f"{self.kind} (own {', '.join(own)})" if own else str(self.kind)

    @model_validator(mode="before")
    @classmethod
    def _from_the_text_of_older_runs(cls, value: Any) -> Any:
        """Runs were recorded with a text such as "landlock (no seccomp notifications: ...)" until 2026."""
        if not isinstance(value, str):
            return value
        kind, _, lacks = value.partition(" (")
        if kind not in {"landlock", "bwrap"}:
            return {"kind": "none"}
        first = ("landlock", "scopes") if kind == "landlock" else ("devices", "processes", "file system")
        return {"kind": kind, "layers": (*first, "seccomp", *(() if lacks else ("broker",)))}


NONE = Strength(kind="none")
