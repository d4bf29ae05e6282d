"""`make setup` installs what requirements.lock names and resolves nothing, so the lock has to name everything.

Torch is the exception: of its builds only the one for CUDA takes NVIDIA's libraries, and is installed with them.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path("requirements.lock")
PINNED = [Requirement(line) for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
NOT_NEEDED = {
    # Clients of many APIs; of alpaca-eval we use the statistics.
    *("fire", "openai", "tiktoken"),
    # The original ALFWorld engine, which has to be compiled: requirements-textworld.lock.
    "textworld",
}


@pytest.mark.parametrize("python", ["3.11.0", "3.11.2", "3.11.14"])
def test_the_lock_names_what_its_packages_need_on_each_release_of_python(python: str) -> None:
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
        # For another release of Python than this one.
        return []
