"""`python -m tasks.webshop.search PRODUCTS --queries FILE` searches a catalogue as WebShop's engine does.

PRODUCTS is JSONL (.xz or not), a product a line, either as WebShop indexes it ({"id", "contents", ...}) or as a
prepared shop has it. FILE has a query a line, as text or as JSON with a "query". The answer is JSONL: {"query",
"hits": [[id, score], ...]}, best first. The index is built the first time, under data/indexes, and memory-mapped
after that.
"""

import argparse
import hashlib
import json
import lzma
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from a2rl.core.errors import A2rlError, UsageError
from a2rl.core.files import replace_folder
from a2rl.core.settings import Settings
from tasks.webshop.shop.index import Index, IndexMissingError
from tasks.webshop.shop.indexing import build
from tasks.webshop.shop.product import Product

EPILOG = """example:
  python -m tasks.webshop.search products_1000.jsonl.xz --queries queries.txt --top 10"""

_err = Console(stderr=True)


def lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file (.xz or not) that are not empty.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
            yield from (line for line in file if line.strip())
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def documents(path: Path) -> Iterator[tuple[str, str]]:
    """Yields the id and the indexed text of each product.

    Raises:
        UsageError: it cannot be read, or a line is no product.
    """
    for number, line in enumerate(lines(path), start=1):
        try:
            row = json.loads(line)
            yield row["id"], row["contents"] if "contents" in row else Product.from_json(line).text
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{path}, line {number} is not a product: give JSONL with `id` and `contents`") from error


def open_index(products: Path, folder: Path | None = None) -> Index:
    """Opens the index of a catalogue, and builds it if it is missing or older than the file.

    Args:
        folder: of the index; by default a folder under data/indexes, named by the catalogue's path, size and time.

    Raises:
        UsageError: the catalogue cannot be read.
    """
    if not products.is_file():
        raise UsageError(f"file not found: {products}: give the catalogue as JSONL (.xz or not)")
    about = products.stat()
    key = hashlib.sha256(f"{products.resolve()} {about.st_size} {about.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = folder or Settings.load().root / "data" / "indexes" / key
    try:
        return Index.open(folder)
    except IndexMissingError:
        making = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        with _err.status(f"indexing {products.name}"):
            build(documents(products), making)
        replace_folder(making, folder)
    except ValueError as error:
        raise UsageError(f"{products} cannot be indexed: {error}") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return Index.open(folder)


def queries(path: Path) -> list[str]:
    """Reads the queries of a file.

    Raises:
        UsageError: the file cannot be read.
    """
    return [_query(line.rstrip("\n")) for line in lines(path)]


def _query(line: str) -> str:
    try:
        row = json.loads(line)
    except ValueError:
        return line
    return row["query"] if isinstance(row, dict) and isinstance(row.get("query"), str) else line


def main() -> None:
    """Exits with code 0, or with 2 if the call is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.webshop.search",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("products", type=Path, metavar="PRODUCTS")
    parser.add_argument("--queries", type=Path, required=True, metavar="FILE")
    parser.add_argument("--top", type=int, default=50, help="maximum number of hits per query (default: 50)")
    parser.add_argument("--index", type=Path, metavar="DIR", help="folder of the index (default: under data/indexes)")
    arguments = parser.parse_args()
    if arguments.top < 1:
        parser.error("--top: at least 1")
    try:
        asked = queries(arguments.queries)
        index = open_index(arguments.products, arguments.index)
    except A2rlError as error:
        _err.print(f"error: {error}", markup=False)
        sys.exit(error.exit_code)
    started = time.perf_counter()
    for query in asked:
        hits = [[hit.id, hit.score] for hit in index.search(query, arguments.top)]
        sys.stdout.write(json.dumps({"query": query, "hits": hits}, ensure_ascii=False) + "\n")
    seconds = time.perf_counter() - started
    _err.print(f"{len(asked)} queries over {len(index):,} products: {len(asked) / max(seconds, 1e-9):,.0f} a second")


if __name__ == "__main__":
    main()
