"""The files of a program, as an agent wrote them: parsed within limits, and found by the names that imports use."""

import ast
from collections.abc import Mapping
from pathlib import PurePosixPath

from a2rl.core.model_text import code_tree

MAX_CHARS = 400_000
"""A larger file is not parsed."""
MAX_FILES = 400
MAX_STARTED = 30
"""Scripts or modules that are taken for programs."""


class Program:
    """The code of an agent at one moment.

    Args:
        files: Text by path, relative to the folder of the code.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(sorted(files.items())[:MAX_FILES])
        self._parsed: dict[str, ast.Module | None] = {}

    def tree(self, path: str) -> ast.Module | None:
        """Returns the syntax tree of a Python file; None if it cannot be parsed."""
        if path not in self._parsed:
            text = self.files[path]
            self._parsed[path] = code_tree(text) if len(text) <= MAX_CHARS else None
        return self._parsed[path]

    @property
    def modules(self) -> list[str]:
        """The paths of all Python files."""
        return [path for path in self.files if path.endswith(".py")]

    @property
    def scripts(self) -> list[str]:
        """The paths of all shell scripts."""
        return [path for path in self.files if path.endswith((".sh", ".bash"))]

    def module(self, dotted: str, near: str = "") -> str | None:
        """Finds the file of a module, as an import in the file `near` would; None if it is not part of the program."""
        tail = dotted.replace(".", "/")
        folder = PurePosixPath(near).parent
        for base in dict.fromkeys((str(folder), ".", *map(str, folder.parents))):
            for candidate in (f"{tail}.py", f"{tail}/__init__.py"):
                path = candidate if base == "." else f"{base}/{candidate}"
                if path in self.files:
                    return path
        found = [path for path in self.modules if path.endswith((f"/{tail}.py", f"/{tail}/__init__.py"))]
        return found[0] if len(found) == 1 else None

    def relative(self, near: str, level: int, name: str) -> str | None:
        """Finds the file of a relative import."""
        folder = PurePosixPath(near).parent
        for _ in range(level - 1):
            folder = folder.parent
        tail = name.replace(".", "/")
        base = "" if str(folder) == "." else f"{folder}/"
        choices = [f"{base}{tail}.py", f"{base}{tail}/__init__.py"] if tail else [f"{base}__init__.py"]
        return next((path for path in choices if path in self.files), None)

    def file(self, name: str) -> str | None:
        """Finds a file by a path as a command line gives it: whole, or relative to some folder."""
        name = name.removeprefix("./")
        if name in self.files:
            return name
        ends = [path for path in self.files if name.endswith(f"/{path}") or path.endswith(f"/{name}")]
        return max(ends, key=len) if ends else None

    @property
    def outermost_modules(self) -> list[str]:
        """The paths of the Python files that no other one imports."""
        imported = {
            target
            for path in self.modules
            for node in ast.walk(self.tree(path) or ast.Module([], []))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for target in self.imports(node, path) - {path}
        }
        found = [path for path in self.modules if path not in imported]
        return [path for path in found if not path.endswith("__init__.py")][:MAX_STARTED]

    @property
    def outermost_scripts(self) -> list[str]:
        """The paths of the shell scripts that no other one names."""
        texts = {path: self.files[path] for path in self.scripts[:MAX_STARTED]}
        inner = {
            path
            for path in texts
            if any(PurePosixPath(path).name in text for other, text in texts.items() if other != path)
        }
        return [path for path in texts if path not in inner] or list(texts)[:1]

    def imports(self, node: ast.Import | ast.ImportFrom, path: str) -> set[str]:
        """Returns the paths of the program's modules that a statement of a file imports."""
        if isinstance(node, ast.Import):
            found = {self.module(alias.name, path) for alias in node.names}
        elif node.level:
            names = (node.module or "", *(f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names))
            found = {self.relative(path, node.level, name) for name in names}
        else:
            names = (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
            found = {self.module(name, path) for name in names}
        return {each for each in found if each is not None}
