"""The labelled training programs: `built_with` was used while the classifier was written, `held_back` was not."""

from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).parent
HALVES = ("built_with", "held_back")


class Labelled(NamedTuple):
    """A program and its route, such as `SFT > GRPO`."""

    name: str
    route: str
    files: dict[str, str]


def half(name: str) -> list[Labelled]:
    """Returns the programs of a half of the corpus."""
    labels: dict[str, str] = yaml.safe_load((HERE / name / "labels.yaml").read_text(encoding="utf-8"))
    return [Labelled(each, route, _files(HERE / name, each)) for each, route in labels.items()]


def _files(folder: Path, name: str) -> dict[str, str]:
    if (single := folder / f"{name}.py").is_file():
        return {single.name: single.read_text(encoding="utf-8")}
    return {
        str(path.relative_to(folder / name)): path.read_text(encoding="utf-8")
        for path in sorted((folder / name).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
