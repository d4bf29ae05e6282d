"""Tests that requirements.lock is complete, because `make setup` installs exactly what it lists.

Torch is the exception: only its CUDA build needs NVIDIA's libraries, and it is installed together with them.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path("requirements.lock")
PINNED = [Requirement(line) for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
NOT_NEEDED = {
    # Clients of many APIs; we use only the statistics of alpaca-eval.
    *("fire", "openai", "tiktoken"),
    # The original ALFWorld engine, which must be compiled: see requirements-textworld.lock.
    "textworld",
}


@pytest.mark.parametrize("python", ["3.11.0", "3.11.2", "3.11.14"])
def test_the_lock_names_what_its_packages_need_on_each_python(python: str) -> None:
    environment = {"python_version": "3.11", "python_full_version": python, "extra": ""}
    named = {canonicalize_name(each.name) for each in PINNED if _applies(each, environment)}
    missing = {
        f"{each.name} needs {need.name}"
        for each in PINNED
        for need in _needs(each.name)
        if each.name != "torch"
        and _applies(need, environment)
        and canonicalize_name(need.name) not in named | NOT_NEEDED
    }
    assert not missing


def _applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment)


def _needs(name: str) -> list[Requirement]:
    try:
        return [Requirement(line) for line in distribution(name).requires or ()]
    except PackageNotFoundError:
        # Only for another version of Python.
        return []


def test_the_agents_lock_is_complete_and_has_our_versions() -> None:
    lines = Path("requirements-agent-cpu.lock").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    ours = {canonicalize_name(each.name): str(each.specifier) for each in PINNED}
    assert [each.name for each in pinned if ours[canonicalize_name(each.name)] != str(each.specifier)] == []
    named = {canonicalize_name(each.name) for each in pinned}
    environment = {"python_version": "3.11", "python_full_version": "3.11.2", "extra": ""}
    missing = {
        f"{each.name} needs {need.name}"
        for each in pinned
        for need in _needs(each.name)
        if each.name != "torch" and _applies(need, environment) and canonicalize_name(need.name) not in named
    }
    assert not missing
    assert {"torch", "transformers", "trl", "peft", "accelerate", "datasets"} <= named
