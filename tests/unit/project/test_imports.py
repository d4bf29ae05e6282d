"""Tests which imports are allowed, and that heavy libraries are loaded only where they are used."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDERS = ("a2rl", "flows", "stages", "tasks")
HEAVY = ("torch", "transformers", "trl", "vllm", "mlflow", "prefect", "textworld", "alfworld", "alpaca_eval")


def imports_of(path: Path) -> Iterator[str]:
    """Yields the modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # A package that is handed to agents under another name imports its own modules relatively.
            assert node.level <= 1, f"{path}: a relative import from outside its package"
            if node.level == 0:
                yield node.module or ""


def sources(repository: Path) -> list[Path]:
    """Returns the source files of the library and of the application."""
    found = [path for folder in FOLDERS for path in sorted((repository / folder).rglob("*.py"))]
    assert len(found) > 40
    return found


def test_the_import_contracts_are_kept(repository: Path) -> None:
    """The contracts are in `[tool.importlinter]` of pyproject.toml: layers, no circular imports, and others."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [program, "--no-logo", "--no-cache"], cwd=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("library", "home"),
    [("prefect", "flows/"), ("mlflow", "a2rl/results/mlflow/"), ("vllm", "a2rl/sampling/")],
)
def test_a_library_has_one_home(repository: Path, library: str, home: str) -> None:
    importers = {
        str(path.relative_to(repository))
        for path in sources(repository)
        if library in {module.partition(".")[0] for module in imports_of(path)}
    }
    assert importers, f"nothing imports {library} any more"
    assert all(importer.startswith(home) for importer in importers), importers


def test_only_settings_reads_the_environment(repository: Path) -> None:
    # The first is for all, services.py and the tracer are the agent's, and the others set or remove variables.
    allowed = {
        "a2rl/core/settings.py",
        "a2rl/results/mlflow/store.py",
        "a2rl/bundle/confined.py",
        "a2rl/cli/flow_runner.py",
        "a2rl/recording/tracer.py",
        "a2rl/sampling/vllm_worker.py",
        "a2rl/task_api/package_process.py",
        "tasks/deepsearchqa/workspace/services.py",
    }
    for path in sources(repository):
        reads = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}
            if isinstance(node.value, ast.Name) and node.value.id == "os"
        ]
        assert not reads or str(path.relative_to(repository)) in allowed, f"{path}:{reads[0].lineno}"


def test_commands_stages_and_task_definitions_load_nothing_heavy(repository: Path) -> None:
    stages = [f"stages.{path.stem}" for path in (repository / "stages").glob("*.py") if not path.stem.startswith("__")]
    tasks = [f"tasks.{path.parent.name}.task" for path in (repository / "tasks").glob("*/task.py")]
    assert stages
    assert tasks
    script = (
        "import importlib, sys\n"
        f"for name in {['a2rl.cli', 'a2rl.cli.commands', *stages, *tasks]}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = [each for each in {HEAVY} if each in sys.modules]\n"
        "    assert not heavy, f'{name} loads {heavy}'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_attacks_import_exists(repository: Path) -> None:
    """Attacks are run by their path, so no type checker reads them; a missing name would look like a success."""
    for path in sorted((repository / "tests/redteam/attacks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in (*FOLDERS, "tests"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name) or find_spec(f"{node.module}.{alias.name}"), (path, alias.name)
