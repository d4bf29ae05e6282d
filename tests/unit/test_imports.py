"""Who may import whom: flows -> stages -> tasks -> a2rl, and what is heavy is loaded where it is used."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = {"a2rl": 0, "tasks": 1, "stages": 2, "flows": 3}
HEAVY = ("torch", "transformers", "trl", "vllm", "mlflow", "prefect", "textworld", "alfworld", "alpaca_eval")


def imports_of(path: Path) -> Iterator[str]:
    """The modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # A package that is handed to agents under another name imports its own modules relatively.
            assert node.level <= 1, f"{path}: a relative import from outside its package"
            yield node.module or "" if node.level == 0 else ""


def sources(repository: Path) -> list[tuple[str, Path]]:
    found = [
        (layer, path)
        for layer in LAYERS
        for path in sorted((repository / layer).rglob("*.py"))
        if "__pycache__" not in path.parts
    ]
    assert len(found) > 40
    return found


def test_nothing_imports_from_a_layer_above_its_own(repository: Path) -> None:
    for layer, path in sources(repository):
        if path.is_relative_to(repository / "a2rl" / "cli"):
            continue  # the command line puts everything together
        for module in imports_of(path):
            top = module.partition(".")[0]
            assert LAYERS.get(top, 0) <= LAYERS[layer], f"{path.relative_to(repository)} imports {module}"


def test_a_task_imports_no_other_task(repository: Path) -> None:
    for layer, path in sources(repository):
        if layer == "tasks" and path.parent != repository / "tasks":
            own = path.relative_to(repository / "tasks").parts[0]
            for module in imports_of(path):
                parts = module.split(".")
                if parts[0] == "tasks":
                    assert parts[1:2] == [own], f"{path.relative_to(repository)} imports {module}"


def test_nothing_but_the_command_line_imports_the_command_line(repository: Path) -> None:
    for layer, path in sources(repository):
        if path.is_relative_to(repository / "a2rl" / "cli") or path.name == "__main__.py":
            continue
        assert not any(module.startswith("a2rl.cli") for module in imports_of(path)), f"{layer}: {path}"


@pytest.mark.parametrize(
    ("library", "home"),
    [("prefect", "flows/"), ("mlflow", "a2rl/tracking.py"), ("vllm", "a2rl/sampling/")],
)
def test_a_library_has_one_home(repository: Path, library: str, home: str) -> None:
    importers = {
        str(path.relative_to(repository))
        for _, path in sources(repository)
        if library in {module.partition(".")[0] for module in imports_of(path)}
    }
    assert importers, f"nothing imports {library} any more"
    assert all(importer.startswith(home) for importer in importers), importers


def test_only_settings_reads_the_environment(repository: Path) -> None:
    # All but the first set a library's own variables before it is loaded.
    may = {
        "a2rl/settings.py",
        "a2rl/tracking.py",
        "a2rl/cli/flow_runner.py",
        "a2rl/sampling/vllm_worker.py",
        "tasks/alfworld/stock.py",
    }
    for _, path in sources(repository):
        reads = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}
            if isinstance(node.value, ast.Name) and node.value.id == "os"
        ]
        assert not reads or str(path.relative_to(repository)) in may, f"{path}:{reads[0].lineno}"


def test_the_command_line_stages_and_task_definitions_load_nothing_heavy(repository: Path) -> None:
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
