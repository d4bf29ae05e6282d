"""Brings a run on this machine up to the valid copy in the store, before anything works on it."""

import re
import shutil
import tarfile
import time
from contextlib import suppress
from pathlib import Path

from a2rl.cluster.claims import Claim
from a2rl.cluster.copies import (
    FOLDERS,
    CopyManifest,
    ObjectStore,
    blob_key,
    checkpoint_key,
    epoch_of,
    parse_entry,
    read_manifest,
    read_spec,
    write_spec,
)
from a2rl.core.errors import InfrastructureError, IntegrityError
from a2rl.core.files import file_digest, machine_failure, write_model
from a2rl.judge.account import Account
from a2rl.linux.orphans import TRACE, end_orphans
from a2rl.run.directory import RunDir
from a2rl.run.names import ACCOUNTS, MAX_CHARS, RUN_ID, place_of, read_stored
from a2rl.run.owner import LOCK

REPLACED = ".replaced"
"""Below the run directory: the states that this machine had and that were not the valid one."""
INCOMING = ".incoming"


def bring_up_to_date(run: RunDir, store: ObjectStore, claim: Claim) -> CopyManifest | None:
    """Makes the run directory what the valid copy says, unless it is that already or has newer entries of its own.

    The directory is locked by this process. What it contains otherwise is set aside.

    Returns:
        The valid copy; None if there is none yet.

    Raises:
        UsageError: Neither this machine nor the store has the run.
        InfrastructureError: The store failed.
    """
    if not claim.before.manifest:
        _have_spec(run, store)
        return None
    manifest = read_manifest(store, claim.before.manifest)
    if _is_current(run, manifest):
        elapsed_s = claim.before.progress.elapsed_s
        if run.clock.path.exists() and elapsed_s > run.clock.used_s():  # of an owner that copied nothing
            run.clock.stop_as_restored(elapsed_s)
        return manifest
    incoming = run.root / INCOMING
    shutil.rmtree(incoming, ignore_errors=True)
    copy = RunDir(incoming)
    try:
        _fetch(copy, store, manifest, claim)
        _set_aside(run)
        for path in incoming.iterdir():
            path.rename(run.root / path.name)
        incoming.rmdir()
    except OSError as error:
        raise machine_failure(f"restore run {run.id}", error) from error
    run.logs.mkdir(exist_ok=True)
    return manifest


def _have_spec(run: RunDir, store: ObjectStore) -> None:
    """Makes sure that both this machine and the store have the settings of a run that begins; one of them has."""
    if not (run.root / "spec.json").exists() and (spec := read_spec(store, run.id)) is not None:
        write_model(run.root / "spec.json", spec)
    write_spec(store, run.load_spec())
    run.logs.mkdir(exist_ok=True)


def continues(run: RunDir, manifest: str) -> bool:
    """Says whether a run directory goes on from the valid copy, so that its own state is the same or newer.

    It does if it was worked on from that copy, or if the copy was made of it. The epoch in the copy's name shows the
    latter also if this machine died before it could note that its commit was accepted.
    """
    stored = read_stored(run)
    if stored is None or not (run.root / "spec.json").exists():
        return False
    return manifest == stored.manifest or epoch_of(manifest) == stored.epoch


def _is_current(run: RunDir, manifest: CopyManifest) -> bool:
    """Says the same, and checks it in the ledger."""
    if not continues(run, manifest.key):
        return False
    rows = run.ledger.rows()
    return len(rows) >= manifest.seq and (not manifest.seq or rows[manifest.seq - 1][-1] == manifest.head)


def fetch_results(folder: Path, store: ObjectStore, key: str) -> RunDir:
    """Fetches of a copy what a report over many runs reads: all but the checkpoints, the code and the logs.

    Args:
        folder: The folder of fetched runs; what is there of this copy already is not fetched again.

    Raises:
        InfrastructureError: The store failed.
    """
    if (found := re.fullmatch(rf"runs/({RUN_ID})/manifests/([\d-]+\.json)", key)) is None:
        raise IntegrityError(f"the claims name {key!r}, which is no copy of a run")
    run_id, name = found.groups()
    copy = RunDir(folder / run_id)
    if (copy.root / name).exists():
        return copy
    manifest = read_manifest(store, key)
    shutil.rmtree(copy.root, ignore_errors=True)
    try:
        _fetch_records(copy, store, manifest)
        if digest := manifest.folders.get("report"):
            _fetch_folder(store, copy, run_id, "report", digest)
        if not (copy.root / "spec.json").exists():
            raise IntegrityError(f"the copy of run {run_id} has no spec.json")
        write_model(copy.root / name, manifest)  # the last file: the copy is complete
    except OSError as error:
        raise machine_failure(f"fetch run {run_id}", error) from error
    return copy


def _fetch_records(copy: RunDir, store: ObjectStore, manifest: CopyManifest) -> None:
    """Writes the files and the ledger of a copy into a folder and checks them."""
    run_id = manifest.run_id
    copy.root.mkdir(parents=True)
    for name, digest in manifest.files.items():
        path = place_of(name, copy.root)
        _fetch_file(store, blob_key(run_id, digest), path, digest)
        if ACCOUNTS.fullmatch(name):  # its rows are taken over, and no database of another machine is opened
            received = path.rename(path.with_name("received"))
            Account(received).copy(path)
            received.unlink()
    copy.ledger.restore(parse_entry(each) for each in store.read_all(manifest.entry_keys()))
    head = copy.ledger.verify()
    if manifest.seq and head != manifest.head:
        raise IntegrityError(f"the ledger of run {run_id} in the store ends with {head}, not with {manifest.head}")


def _fetch(copy: RunDir, store: ObjectStore, manifest: CopyManifest, claim: Claim) -> None:
    """Writes the whole copy into a folder and checks it."""
    run_id = manifest.run_id
    _fetch_records(copy, store, manifest)
    _require_room(copy.root, sum(size for files in manifest.checkpoints.values() for size in files.values()))
    for name, files in manifest.checkpoints.items():
        for file, size in files.items():
            path = place_of(f"submissions/{name}/{file}", copy.root)
            store.download(checkpoint_key(run_id, name, file), path)
            if path.stat().st_size != size:
                raise InfrastructureError(f"{file} of checkpoint {name} in the store is not whole; resume the run")
    for name, digest in manifest.folders.items():
        _fetch_folder(store, copy, run_id, name, digest)
    with suppress(FileNotFoundError):
        copy.clock.stop_as_restored(claim.before.progress.elapsed_s)


def _fetch_file(store: ObjectStore, key: str, path: Path, digest: str) -> None:
    store.download(key, path)
    if file_digest(path) != digest:
        raise InfrastructureError(f"{key} in the store has another content than its name says; resume the run")


def _fetch_folder(store: ObjectStore, copy: RunDir, run_id: str, name: str, digest: str) -> None:
    if name not in FOLDERS:
        raise IntegrityError(f"the copy in the store has a folder {name[:MAX_CHARS]!r}, which no run has")
    folder = copy.root / name
    packed = folder.with_name(f"{name}.tar.gz")
    _fetch_file(store, blob_key(run_id, digest), packed, digest)
    folder.mkdir(parents=True)
    try:
        with tarfile.open(packed) as archive:
            members = archive.getmembers()
            _require_room(folder, sum(member.size for member in members))
            if odd := [member.name for member in members if not member.isreg()]:
                raise IntegrityError(f"the folder {name} in the store has {odd[0][:MAX_CHARS]!r}, which is no file")
            archive.extractall(folder, members, filter="data")
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise IntegrityError(f"the folder {name} in the store cannot be unpacked: {error}") from error
    packed.unlink()


def _require_room(folder: Path, size: int) -> None:
    if shutil.disk_usage(folder).free < size:
        raise InfrastructureError(f"the disk of {folder} has no room for {size >> 20:,} MiB: free some and resume")


def _set_aside(run: RunDir) -> None:
    """Ends what is left of an earlier attempt on this machine, and moves its state out of the way."""
    end_orphans(run.logs / TRACE)
    if not run.ledger.path.exists():  # only the settings were fetched
        (run.root / "spec.json").unlink(missing_ok=True)
    keep = run.root / REPLACED / time.strftime("%Y%m%d-%H%M%S")
    number = 1
    while keep.exists():
        keep, number = keep.with_name(f"{keep.name[:15]}-{number}"), number + 1
    for path in list(run.root.iterdir()):
        if path.name not in {LOCK, REPLACED, INCOMING}:
            keep.mkdir(parents=True, exist_ok=True)
            path.rename(keep / path.name)
