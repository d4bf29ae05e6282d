"""Copies a run to the object store while it is worked on, so that another machine can take it over.

The order is what makes a copy whole: checkpoints first (once each), then grades and other files, then the entries of
the ledger, then the manifest with the clock; at last the claims name the manifest, in the transaction that checks the
epoch. Only then is an entry marked as stored, and only then does the grading service tell an agent of it.
"""

import hashlib
import io
import os
import tarfile
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from a2rl.cluster.claims import Claim, ClaimLostError, Claims, Commit, Lease, Progress, lost
from a2rl.cluster.copies import (
    FOLDERS,
    CopyManifest,
    ObjectStore,
    blob_key,
    checkpoint_key,
    entry_key,
    entry_object,
)
from a2rl.core.errors import A2rlError, InfrastructureError
from a2rl.core.event_log import Background
from a2rl.core.files import file_digest
from a2rl.core.processes import STOP
from a2rl.judge.account import Account
from a2rl.run.directory import RunDir, aside_log
from a2rl.run.events import SubmissionAccepted
from a2rl.run.failure import refusal
from a2rl.run.ledger import Row
from a2rl.run.names import Stored, is_run_file, mark_stored
from a2rl.run.records import STAGES, ExecuteRecord, GradeRecord

TICK_S = 0.3
STATE_EVERY_S = 20.0
"""How often the clock and the agent's code are copied if nothing happens in the ledger."""
LOGS_PAUSE, LOGS_EVERY_S = 50.0, 300.0
"""How long logs wait for their next copy: so many times as long as the last one took, and at most so long. A machine
that takes over does not know what the agent has spent since then."""
LAST_COPY_S, STOPPED_COPY_S = 900.0, 20.0
"""How long to try to copy the last state of a run; the second, if the user has stopped the run."""
ACCOUNTS = "*account.db"
SIGNATURES = "signatures.jsonl"
"""Copied as soon as it grows: a machine that takes over could sign these entries only too late."""
NOT_COPIED = frozenset({"owner.lock", "stored.json", "gpus.json", "refused.txt"})
"""Files of a run directory that belong to one machine."""
CHECKPOINTS = "[0-9a-f]" * 16
"""The folders of checkpoints that are complete: see `RunDir.checkpoint`."""


def progress_of(run: RunDir, claim: Claim) -> Progress:
    """Returns what the claims are told about a run by whoever has this claim."""
    graded, executed = run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
    has_driver = executed is not None and (executed.seen or executed.usage) is not None
    return Progress(
        stage=next((stage for stage in STAGES if not run.record_path(stage).exists()), ""),
        budget_s=run.spec.budget_s,
        elapsed_s=run.clock.used_s(),
        submissions=len(run.ledger.events(SubmissionAccepted)),
        judge_usd=Account(run.account).use().dollars,
        agent_usd=executed.cost_usd if executed and has_driver else 0.0,
        verdict=graded.verdict if graded else "",
        refused=claim.before.progress.refused + bool(refusal(run)),
    )


class Replica:
    """Copies one run.

    Args:
        claims: Where a copy is made valid.
        manifest: The last copy, from which this one goes on.
        lease: What keeps the claim alive. It is told when a commit shows that the claim was lost.
    """

    def __init__(
        self,
        run: RunDir,
        store: ObjectStore,
        claims: Claims,
        claim: Claim,
        manifest: CopyManifest | None,
        lease: Lease,
    ) -> None:
        self._run, self._store, self._claims, self._claim = run, store, claims, claim
        self._valid = manifest or CopyManifest(run_id=run.id, epoch=claim.epoch, number=0)
        self._lease = lease
        self._objects = _objects_of(self._valid)
        """What is in the store of this run, as far as it is known, apart from the ledger."""
        self._known: dict[str, tuple[object, str]] = {}
        """The state and the digest of each file that was copied."""
        self._number = 0
        self._lock = threading.Lock()
        self._state_at = self._logs_due_at = 0.0
        self._thread = Background("copying to the store", self.look, lambda: TICK_S, aside_log(run))
        self._mark_valid(self._valid)

    def __enter__(self) -> "Replica":
        self._thread.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.__exit__(None, None, None)

    def look(self) -> None:
        """Copies what is new, if there is something, or if it is time to copy the clock."""
        now = time.monotonic()
        is_new = self._run.ledger.rows(after=self._valid.seq) or self._has_new_signature()
        if is_new or now - self._state_at >= STATE_EVERY_S:
            logs_are_due = now >= self._logs_due_at
            self.push(logs_are_due)
            self._state_at = now
            if logs_are_due:
                self._logs_due_at = now + min(LOGS_PAUSE * (time.monotonic() - now), LOGS_EVERY_S)

    def finish(self) -> None:
        """Copies everything for the last time, after the thread has ended.

        Raises:
            InfrastructureError: That was not possible; the run can be resumed here.
        """
        began = time.monotonic()
        while True:
            try:
                self.push(logs=True)
            except ClaimLostError:
                raise
            except A2rlError as error:
                patience_s = STOPPED_COPY_S if STOP.is_set() else LAST_COPY_S
                if self._lease.is_lost or time.monotonic() - began > patience_s:
                    raise InfrastructureError(
                        f"{error}. Run {self._run.id} is whole here, but its last state is not in the store: "
                        f"`a2rl resume {self._run.id}` on this machine copies it"
                    ) from error
                time.sleep(1.0)
            else:
                return

    def push(self, logs: bool = False) -> None:
        """Copies the state of the run.

        Raises:
            ClaimLostError: The claim does not hold any more; the copy is not valid.
            InfrastructureError: The store or the claims failed; the copy before is still valid.
        """
        try:
            with self._lock:  # the thread may still be copying when `finish` begins
                self._push(logs)
        except OSError as error:
            raise InfrastructureError(f"cannot copy run {self._run.id}: {error}; check the disk") from error

    def _push(self, logs: bool) -> None:
        run, before = self._run, self._valid
        if self._lease.is_lost:
            raise lost(self._claim)
        # A record is written after its events, so records that are read before the ledger never run ahead of it.
        records = self._copy_files("records/*.json")
        rows = run.ledger.rows(after=before.seq)
        checkpoints = {path.name: self._copy_checkpoint(path) for path in sorted(run.checkpoints.glob(CHECKPOINTS))}
        others = self._copy_files("*", "grades/*.json", "grades/*.jsonl.gz")
        others |= {path.name: self._copy_account(path) for path in run.root.glob(ACCOUNTS)}
        wanted = [name for name in FOLDERS if logs or name == "code"]
        folders = {name: self._copy_folder(run.root / name) for name in wanted if (run.root / name).is_dir()}
        for row in rows:
            self._store.write(entry_key(run.id, row.seq, self._claim.epoch), entry_object(row, self._claim.epoch))
        self._number += 1
        after = CopyManifest(
            run_id=run.id,
            epoch=self._claim.epoch,
            number=self._number,
            seq=before.seq + len(rows),
            head=rows[-1].hash if rows else before.head,
            epochs={**before.epochs, **({self._claim.epoch: rows[-1].seq} if rows else {})},
            files=records | others,
            folders=before.folders | folders,
            checkpoints=checkpoints,
        )
        self._objects |= _objects_of(after)
        self._make_valid(after, rows)
        self._remove_unneeded()

    def _make_valid(self, after: CopyManifest, rows: list[Row]) -> None:
        self._store.write(after.key, (after.model_dump_json() + "\n").encode())
        entries = [(row.seq, row.hash) for row in rows]
        try:
            self._claims.commit(self._claim, Commit(after.key, entries, progress_of(self._run, self._claim)))
        except ClaimLostError:
            self._lease.lose()
            raise
        self._mark_valid(after)

    def _mark_valid(self, manifest: CopyManifest) -> None:
        self._valid = manifest
        name = manifest.key if manifest.number else ""
        mark_stored(self._run, Stored(seq=manifest.seq, epoch=self._claim.epoch, manifest=name))

    def _copy_checkpoint(self, folder: Path) -> dict[str, int]:
        if (known := self._valid.checkpoints.get(folder.name)) is not None:
            return known
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
        for path in files:
            self._store.upload(checkpoint_key(self._run.id, folder.name, str(path.relative_to(folder))), path)
        return {str(path.relative_to(folder)): path.stat().st_size for path in files}

    def _copy_files(self, *patterns: str) -> dict[str, str]:
        """Copies the files that match; returns their digests by name, without those that are gone meanwhile."""
        root = self._run.root
        names = {str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern) if _is_copied(path)}
        names = {name for name in names if is_run_file(name)}  # a stray file is not restored either
        return {name: digest for name in sorted(names) if (digest := self._copy_file(name))}

    def _copy_file(self, name: str) -> str:
        """Copies a file unless its content is there already; returns its digest, or nothing if it is gone."""
        path = self._run.root / name
        with suppress(FileNotFoundError):
            status = path.stat()
            state = (status.st_mtime_ns, status.st_size)
            if (known := self._known.get(name)) is not None and known[0] == state:
                return known[1]
            content = path.read_bytes()
            digest = self._copy_bytes(content)
            self._known[name] = (state, digest)
            return digest
        return ""

    def _has_new_signature(self) -> bool:
        with suppress(FileNotFoundError):
            status = (self._run.root / SIGNATURES).stat()
            known = self._known.get(SIGNATURES)
            return known is None or known[0] != (status.st_mtime_ns, status.st_size)
        return False

    def _copy_bytes(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        if digest not in {*self._valid.files.values(), *self._valid.folders.values()}:
            self._store.write(blob_key(self._run.id, digest), content)
        return digest

    def _copy_account(self, account: Path) -> str:
        """Copies a database of what was spent as it is at one moment."""
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch, account.name)
            Account(account).copy(copy)
            return self._copy_bytes(copy.read_bytes())

    def _copy_folder(self, folder: Path) -> str:
        """Copies a folder as a tar file, unless nothing in it has changed."""
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
        state = [_state_of(path) for path in files]
        if (known := self._known.get(folder.name)) is not None and known[0] == state:
            return known[1]
        with tempfile.TemporaryDirectory() as scratch:
            packed = Path(scratch, "folder.tar.gz")
            with tarfile.open(packed, mode="w:gz", compresslevel=1) as archive:
                for path in files:
                    _add(archive, path, folder)
            digest = file_digest(packed)
            self._store.upload(blob_key(self._run.id, digest), packed)
        self._known[folder.name] = (state, digest)
        return digest

    def _remove_unneeded(self) -> None:
        """Removes what only earlier copies needed; what cannot be removed now is tried again after the next copy."""
        with suppress(InfrastructureError):
            for key in self._objects - _objects_of(self._valid):
                if self._lease.is_lost:  # the new owner may have written the same object again
                    return
                self._store.remove(key)
                self._objects.discard(key)


def _objects_of(manifest: CopyManifest) -> set[str]:
    """Returns the objects of a copy, apart from the ledger's."""
    run_id = manifest.run_id
    keys = {blob_key(run_id, digest) for digest in (*manifest.files.values(), *manifest.folders.values())}
    keys |= {checkpoint_key(run_id, name, file) for name, files in manifest.checkpoints.items() for file in files}
    return keys | ({manifest.key} if manifest.number else set())


def _is_copied(path: Path) -> bool:
    """Says whether a file goes to the store: no link, no database, and none that belongs to one machine."""
    stays_here = path.name.startswith(".") or ".db" in path.name or path.name in NOT_COPIED
    return not stays_here and path.is_file() and not path.is_symlink()


def _state_of(path: Path) -> tuple[str, int, int]:
    with suppress(FileNotFoundError):
        status = path.stat()
        return str(path), status.st_mtime_ns, status.st_size
    return str(path), 0, 0


def _add(archive: tarfile.TarFile, path: Path, folder: Path) -> None:
    """Adds a file as it is at this moment; one that grows meanwhile is cut, and one that is gone is left out."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(os.fstat(descriptor).st_size)
        member = tarfile.TarInfo(str(path.relative_to(folder)))
        member.size, member.mode = len(content), os.fstat(descriptor).st_mode & 0o755
        archive.addfile(member, io.BytesIO(content))
