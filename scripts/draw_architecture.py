"""Draws the import graph of the packages into docs/architecture.md, from the code itself.

    python scripts/draw_architecture.py            # rewrite the picture and the table
    python scripts/draw_architecture.py --check    # exit status 1 if they do not match the code

An arrow points from a package to one that it imports. An arrow that follows from others is left out: where a imports b,
and b imports c, no arrow from a to c is drawn.
"""

import argparse
import ast
import sys
from pathlib import Path

import grimp
import networkx

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "architecture.md"
ROOTS = ("a2rl", "flows", "stages", "tasks")
BEGIN, END = "<!-- begin: scripts/draw_architecture.py -->", "<!-- end: scripts/draw_architecture.py -->"


def package_imports() -> networkx.DiGraph:
    """Returns the packages, and for each the packages that its modules import, also inside functions."""
    modules = grimp.build_graph(*ROOTS, cache_dir=None)
    packages = networkx.DiGraph()
    for importer in modules.modules:
        packages.add_node(package_of(importer))
        for imported in modules.find_modules_directly_imported_by(importer):
            packages.add_edge(package_of(importer), package_of(imported))
    packages.remove_edges_from(list(networkx.selfloop_edges(packages)))
    packages.remove_node("a2rl")  # holds the version and starts the command line, nothing else
    return packages


def package_of(module: str) -> str:
    """Returns the package that a module counts as: `a2rl.<package>`, or one of the other top-level folders."""
    if module == "a2rl.__main__":
        return "a2rl"
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "a2rl" else parts[0]


def label_of(package: str) -> str:
    """Returns what the picture calls a package; folders outside a2rl end with a slash."""
    return package.removeprefix("a2rl.") if package.startswith("a2rl.") else f"{package}/"


def folder_of(package: str) -> Path:
    """Returns the folder of a package."""
    return REPOSITORY.joinpath(*package.split("."))


def summary_of(package: str) -> str:
    """Returns the first paragraph of the package's docstring on one line."""
    source = (folder_of(package) / "__init__.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def draw(packages: networkx.DiGraph) -> str:
    """Returns the picture (Mermaid) and the table (Markdown) of the packages."""
    needed = networkx.transitive_reduction(packages)
    ordered = list(networkx.lexicographical_topological_sort(packages))
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {name.replace(".", "_")}["{label_of(name)}"]' for name in ordered]
    lines += [f"    {a.replace('.', '_')} --> {b.replace('.', '_')}" for a, b in sorted(needed.edges)]
    lines += ["```", "", "| package | what it is for |", "|---|---|"]
    for name in ordered:
        link = f"[`{name}`](../{name.replace('.', '/')}/)"
        lines.append(f"| {link} | {summary_of(name).replace('|', ' ')} |")
    return "\n".join(lines)


def page_with(drawn: str, page: str) -> str:
    """Returns the page with what stands between the two marks replaced.

    Raises:
        ValueError: the page does not have both marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{drawn}\n{END}{after}"


def main() -> int:
    """Rewrites the page, or checks it; returns the exit status."""
    parser = argparse.ArgumentParser(description="Draw the import graph into docs/architecture.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page does not match the code")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    current = page_with(draw(package_imports()), page)
    if arguments.check and current != page:
        sys.stderr.write(f"{PAGE} does not match the code: run `python scripts/draw_architecture.py`\n")
        return 1
    if not arguments.check:
        PAGE.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))
    raise SystemExit(main())
