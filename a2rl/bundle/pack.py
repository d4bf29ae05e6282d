"""Packs a run into one file: everything that an audit needs, and nothing secret."""

import gzip
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from a2rl import __version__
from a2rl.bundle.form import CODE, HIDDEN, INDEX, LEDGER, RUN, Index, Member
from a2rl.core.errors import UsageError
from a2rl.core.files import file_digest, machine_failure
from a2rl.core.secrets import scrub_bytes
from a2rl.grading.pruning import pruned
from a2rl.recording.code_history import export_history
from a2rl.results.manifest import FILE, files_of
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.inputs import hidden_of
from a2rl.run.names import is_run_file

ANCHORS = (FILE, "signatures.jsonl", "published.jsonl", "clock.json")
SECRET, UNKNOWN = "it has text with the form of a key", "it is no file of a run"


def pack(run: RunDir, target: Path, with_weights: bool) -> Index:
    """Writes the bundle of a run, atomically. The same run gives the same bytes.

    Args:
        run: The run; it should be finished.
        target: The file to write.
        with_weights: Whether to include the kept checkpoints, with which a reader can grade them anew.

    Raises:
        UsageError: The run has not begun.
        InfrastructureError: The disk or git failed.
    """
    if not run.ledger.path.exists():
        raise UsageError(f"run {run.id} has not begun, so there is nothing to bundle")
    with tempfile.TemporaryDirectory(prefix="a2rl-bundle-") as scratch:
        members, left_out = _members(run, Path(scratch)), {str(path): UNKNOWN for path in _unknown(run)}
        weights = _weights(run)
        for name in [name for name, path in members.items() if _has_secret(path)]:
            left_out[name.removeprefix(f"{RUN}/")] = SECRET
            del members[name]
        if with_weights:
            members |= {f"{RUN}/{path.relative_to(run.root)}": path for files in weights.values() for path in files}
        index = _index(run, members, left_out, () if with_weights else tuple(sorted(weights)))
        _write(target, index, members)
        return index


def _members(run: RunDir, scratch: Path) -> dict[str, Path]:
    """Returns the files of the bundle by name, without weights."""
    found = {f"{RUN}/{path}": run.root / path for path in files_of(run) if is_run_file(str(path))}
    found |= {f"{RUN}/{name}": run.root / name for name in ANCHORS if (run.root / name).is_file()}
    found[LEDGER] = scratch / "ledger.jsonl"
    found[LEDGER].write_text("".join(json.dumps(row) + "\n" for row in run.ledger.rows()), encoding="utf-8")
    if export_history(run.code, scratch / "code.bundle"):
        found[CODE] = scratch / "code.bundle"
    hidden = hidden_of(run)
    if not hidden.is_relative_to(run.root):
        found |= {f"{HIDDEN}/{path.relative_to(hidden)}": path for path in _files_in(hidden)}
    return found


def _unknown(run: RunDir) -> list[PurePosixPath]:
    return [path for path in files_of(run) if not is_run_file(str(path))]


def _files_in(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _weights(run: RunDir) -> dict[str, list[Path]]:
    """Returns the weight files of the kept checkpoints by the digest of the weights."""
    entries = run.ledger.entries()
    accepted = {entry.event.weights_digest for entry in entries if isinstance(entry.event, SubmissionAccepted)}
    kept = accepted - pruned(entries)
    return {digest: sorted(run.checkpoint(digest).glob("*.safetensors")) for digest in kept}


def _has_secret(path: Path) -> bool:
    data = path.read_bytes()
    return scrub_bytes(data) != data


def _index(run: RunDir, members: dict[str, Path], left_out: dict[str, str], away: tuple[str, ...]) -> Index:
    files = {name: Member(bytes=path.stat().st_size, sha256=file_digest(path)) for name, path in members.items()}
    return Index(
        run_id=run.id,
        a2rl=__version__,
        task=run.spec.task,
        variant=run.spec.variant,
        files=dict(sorted(files.items())),
        left_out=left_out,
        base_model=run.spec.model,
        weights_away=away,
    )


def _write(target: Path, index: Index, members: dict[str, Path]) -> None:
    making = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with (
            making.open("wb") as file,
            gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            content = (index.model_dump_json(indent=1) + "\n").encode()
            _add(archive, INDEX, len(content), lambda: io.BytesIO(content))
            for name, member in index.files.items():
                _add(archive, name, member.bytes, members[name].open, "rb")
        making.replace(target)
    except OSError as error:
        making.unlink(missing_ok=True)
        raise machine_failure(f"write the bundle {target}", error) from error


def _add(archive: tarfile.TarFile, name: str, size: int, opener: Callable[..., IO[bytes]], *mode: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    with opener(*mode) as content:
        archive.addfile(entry, content)
