"""What a run directory can have: the names of the files that leave it, in a bundle or a store, and come back.

docs/run-directory.md says what they are. Everything else is left out when a run is packed, and refused when one comes.
"""

import re
from pathlib import Path

from a2rl.core.errors import IntegrityError

MAX_CHARS = 400
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
_PART = r"[A-Za-z0-9_][^/]*"
_FILES = re.compile(
    "|".join((
        r"(spec|manifest|clock|gpus|trajectory|summary)\.json", r"(signatures|published)\.jsonl", r"refused\.txt",
        r"records/\w+\.json", r"grades/[\w.-]+\.(json|jsonl\.gz)", r"report/(index\.html|report\.json|report\.md)",
        rf"submissions/[0-9a-f]{{16}}/{_PART}", rf"(logs|twins)/({_PART}/)*{_PART}",
    ))
)  # fmt: skip
ACCOUNTS = re.compile(r"(labels-)?account\.db")
_BELOW = re.compile(rf"({_PART}/)*{_PART}")


def is_run_file(name: str) -> bool:
    """Says whether a file with this path can be in the directory of a run."""
    return is_plain(name) and _FILES.fullmatch(name) is not None


def is_plain(name: str) -> bool:
    """Says whether a path stays below its folder and can be shown, and no part of it begins with a dot."""
    return len(name) <= MAX_CHARS and name.isprintable() and _BELOW.fullmatch(name) is not None


def place_of(name: str, root: Path) -> Path:
    """Returns where a file of a run that comes from a store is written.

    Raises:
        IntegrityError: No run has such a file.
    """
    if not (is_run_file(name) or ACCOUNTS.fullmatch(name)):
        raise IntegrityError(f"the copy in the store has a file {name[:MAX_CHARS]!r}, which no run has")
    return root / name
