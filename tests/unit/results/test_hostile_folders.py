"""Folders of runs that somebody sent, and copies from a store: no command that reads them does harm or waits."""

import hashlib
import io
import json
import os
import re
import shutil
import socket
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from a2rl.anchor.signatures import read_signatures
from a2rl.cli import stored_runs
from a2rl.cli.results import list_runs, show_list
from a2rl.cli.stored_runs import find_run
from a2rl.cli.watching import Watcher
from a2rl.cluster.copies import CopyManifest, ObjectStore, blob_key, entry_key, entry_object, read_manifest
from a2rl.cluster.restore import fetch_results
from a2rl.core.errors import A2rlError, InfrastructureError, IntegrityError, UsageError
from a2rl.core.settings import Settings
from a2rl.judge.account import Account
from a2rl.results.mirror import MLFLOW_NOTE, left_behind
from a2rl.results.report.page import write_report
from a2rl.results.suite.files import runs_of, write_suite_report
from a2rl.results.suite.run_summary import summaries
from a2rl.results.verify import verify_run
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
from a2rl.run.inputs import base_model_of
from a2rl.run.ledger import Ledger
from a2rl.run.owner import trust
from tests.as_nobody import as_nobody, folder_of_nobody
from tests.bundles import HANGS, MORE_ROWS, VIEW, database, journal_that_deletes
from tests.run_maker import Finished, finished_run
from tests.signing_key import make_key, use_anchor
from tests.small_model import edit_json


class Sent(Finished):
    """A folder of a run that somebody sent, which the reader has put into runs/, and a file of the reader's."""

    @property
    def victim(self) -> Path:
        return self.settings.root.parent / "precious.txt"

    def ledger(self, *statements: str) -> bytes:
        return database(self.settings.root.parent / "x.db", *statements)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished_run(tmp_path_factory.mktemp("sent") / "checkout", in_full=True)


@pytest.fixture
def sent(original: Finished, tmp_path: Path) -> Sent:
    shutil.copytree(original.settings.root, tmp_path / "checkout", symlinks=True)
    settings = Settings(tmp_path / "checkout", original.settings.environ)
    found = Sent(RunDir(settings.runs / original.run.id), settings)
    found.victim.write_text("a thesis\n")
    return found


def _ledger(*statements: str) -> Callable[[Sent], object]:
    return lambda sent: (sent.run.root / "ledger.db").write_bytes(sent.ledger(*statements))


def _deletes(name: str) -> Callable[[Sent], object]:
    def edit(sent: Sent) -> None:
        (sent.run.root / name).write_bytes(sent.ledger())
        (sent.run.root / f"{name}-journal").write_bytes(journal_that_deletes(sent.victim))

    return edit


def _is_link(name: str) -> Callable[[Sent], object]:
    def edit(sent: Sent) -> None:
        (sent.run.root / name).unlink(missing_ok=True)
        (sent.run.root / name).symlink_to(sent.victim)

    return edit


def _is_second_name(name: str) -> Callable[[Sent], object]:
    return lambda sent: (sent.run.root / name).hardlink_to(sent.victim)


def _is_pipe(name: str) -> Callable[[Sent], object]:
    def edit(sent: Sent) -> None:
        (sent.run.root / name).unlink(missing_ok=True)
        os.mkfifo(sent.run.root / name)

    return edit


def _is_socket(sent: Sent) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(sent.run.logs)
        made.bind("agent.sock")
        os.chdir(here)


def _is_endless(sent: Sent) -> None:
    path = sent.run.record_path("grade")
    path.unlink()
    path.symlink_to("/dev/zero")


def _is_a_circle(sent: Sent) -> None:
    """The table's root page has itself below it, hundreds of times."""
    content = bytearray(sent.ledger())
    root = 4096
    cells = [4096 - 5 * number for number in range(1, 400)]
    content[root : 2 * root] = bytes(4096)
    content[root : root + 12] = (
        bytes([5, 0, 0]) + len(cells).to_bytes(2) + cells[-1].to_bytes(2) + bytes([0, 0, 0, 0, 2])
    )
    for number, cell in enumerate(cells):
        content[root + 12 + 2 * number : root + 14 + 2 * number] = cell.to_bytes(2)
        content[root + cell : root + cell + 5] = bytes([0, 0, 0, 2, number % 100])
    (sent.run.root / "ledger.db").write_bytes(content)


def _has_settings_for_git(sent: Sent) -> None:
    git, mark = sent.run.code / ".git", sent.victim.with_name("was-here")
    with (git / "config").open("a") as file:
        file.write(f"[core]\n\tfsmonitor = touch {mark}\n\tsshCommand = touch {mark}\n")
        file.write(
            f'[extensions]\n\tpartialClone = o\n[remote "o"]\n\turl = ext::sh -c "touch {mark}"\n\tpromisor = true\n'
        )
        file.write('\tpromisor = true\n[protocol "ext"]\n\tallow = always\n')
    for found in (git / "objects").glob("??"):
        shutil.rmtree(found)


def _is_deep(name: str) -> Callable[[Sent], object]:
    return lambda sent: (sent.run.root / name).write_text("[" * 200_000)


def _is_folder(name: str) -> Callable[[Sent], object]:
    def edit(sent: Sent) -> None:
        (sent.run.root / name).unlink()
        (sent.run.root / name).mkdir()

    return edit


def _is_file_for_folder(name: str) -> Callable[[Sent], object]:
    def edit(sent: Sent) -> None:
        shutil.rmtree(sent.run.root / name)
        (sent.run.root / name).write_text("x")

    return edit


def _is_no_text(name: str, without: str = "") -> Callable[[Sent], object]:
    def edit(sent: Sent) -> None:
        if without:
            (sent.run.root / without).unlink()
        (sent.run.root / name).write_bytes(b"\xff\xfe")

    return edit


def _is_worse(name: str, key: str) -> Callable[[Sent], object]:
    def edit(sent: Sent) -> None:
        found = json.loads((sent.run.root / name).read_text())
        assert found[key]["score"] > 0
        edit_json(sent.run.root / name, **{key: found[key] | {"score": 0.0}})

    return edit


def _is_huge(sent: Sent) -> None:
    with sent.run.record_path("grade").open("wb") as file:
        file.truncate(1 << 40)


HOSTILE: dict[str, Callable[[Sent], object]] = {
    "a journal of the ledger that deletes a file": _deletes("ledger.db"),
    "a journal of the account that deletes a file": _deletes("account.db"),
    "a trigger that hangs": _ledger(HANGS),
    "a trigger that adds rows": _ledger(MORE_ROWS),
    "a view": lambda sent: (sent.run.root / "ledger.db").write_bytes(
        database(sent.settings.root.parent / "x.db", VIEW, schema="")
    ),
    "a circle of pages": _is_a_circle,
    "a ledger that is a link": _is_link("ledger.db"),
    "a log of the ledger that is a link": _is_link("ledger.db-wal"),
    "an index of the ledger that is a link": _is_link("ledger.db-shm"),
    "a ledger that is a pipe": _is_pipe("ledger.db"),
    "a record that is a pipe": _is_pipe("records/grade.json"),
    "signatures that are a pipe": _is_pipe("signatures.jsonl"),
    "a log that is a socket": _is_socket,
    "a log that is a link": _is_link("logs/agent.log"),
    "a record without end": _is_endless,
    "a record as large as a disk": _is_huge,
    "a deep record": _is_deep("records/grade.json"),
    "deep settings": _is_deep("spec.json"),
    "records that are a file": _is_file_for_folder("records"),
    "a record that is a folder": _is_folder("records/setup.json"),
    "a result without end": lambda sent: sent.run.record_path("grade").write_text(
        re.sub(r'"improvement": [-\d.]+', '"improvement": Infinity', sent.run.record_path("grade").read_text())
    ),
    "a worse base model in its record": _is_worse("records/baseline.json", "private"),
    "a worse base model in its grade": _is_worse("grades/baseline.json", "score"),
    "a note that is a link": _is_link(f"logs/{MLFLOW_NOTE.file}"),
    "a note that is a pipe": _is_pipe(f"logs/{MLFLOW_NOTE.file}"),
    "a note that is no text": _is_no_text(f"logs/{MLFLOW_NOTE.file}"),
    "a refusal that is no text": _is_no_text("refused.txt", without="records/grade.json"),
    "settings of git that run a program": _has_settings_for_git,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_loses_against_every_command_that_reads(sent: Sent, name: str) -> None:
    trust(sent.run, sent.settings)
    HOSTILE[name](sent)
    before = {path for path in sent.victim.parent.iterdir() if path.name != "x.db"}
    is_sound = False
    try:
        run = find_run(sent.run.id, sent.settings)
    except A2rlError:
        run = None
    if run is not None:
        is_sound = not any(check.problem for check in verify_run(run, None))
        for read in (write_report, lambda run, _: run.ledger.entries()):
            try:
                read(run, sent.settings)
            except (A2rlError, FileNotFoundError):
                continue
    show_list(list_runs(RunDir.all(sent.settings.runs)))
    for behind in left_behind(sent.settings):
        MLFLOW_NOTE.mark(behind, "It does not answer.")
    summaries(RunDir.all(sent.settings.runs))
    runs_of([sent.run.id], sent.settings)
    Watcher(sent.settings.runs, lambda _: True).look()
    # An account of a run without a judge is not read, and what MLflow lacks says nothing against a run.
    assert not is_sound or "account" in name or "note" in name
    assert sent.victim.read_text() == "a thesis\n"
    assert {path for path in sent.victim.parent.iterdir() if path.name != "x.db"} == before


def test_no_command_that_only_reads_downloads_a_model(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def snapshot_download(name: str, **_: object) -> str:
        asked.append(name)
        raise OSError("no network here")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    shutil.rmtree(sent.settings.models / "small")
    edit_json(sent.run.root / "spec.json", model="somebody/large-7b")
    [found] = [each for each in verify_run(sent.run, None) if each.what.startswith("the base model and")]
    assert "not the base model: somebody/large-7b is not on this machine" in found.note
    [summary] = summaries([sent.run]).runs
    assert summary.parameters == 7_000_000_000
    assert asked == []
    with pytest.raises(InfrastructureError, match="put it back"):
        base_model_of(sent.run)  # to go on with a run, it is downloaded
    assert asked == ["somebody/large-7b"]


def test_a_report_signs_only_a_run_that_was_made_here(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "load", lambda: sent.settings)
    make_key(sent.settings.root / "key")
    use_anchor(sent.settings, key="key")
    stored_runs.report(sent.run.id)
    assert read_signatures(sent.run.root) == []
    trust(sent.run, sent.settings)
    stored_runs.report(sent.run.id)
    assert len(read_signatures(sent.run.root)) == 1


def test_a_report_over_runs_links_to_no_page_that_was_sent(sent: Sent) -> None:
    sent.run.report.parent.mkdir(exist_ok=True)
    sent.run.report.write_text("<script>steal()</script>")
    link = f'href="../../runs/{sent.run.id}/report/index.html"'
    assert link not in write_suite_report("all", [sent.run], sent.settings).read_text()
    trust(sent.run, sent.settings)
    assert link in write_suite_report("all", [sent.run], sent.settings).read_text()


def test_a_path_means_the_run_that_is_there(sent: Sent, tmp_path: Path) -> None:
    assert find_run(str(sent.run.root), sent.settings).root == sent.run.root
    for elsewhere in (tmp_path / sent.run.id, sent.run.root / sent.run.id):
        with pytest.raises(UsageError, match="is not a run of this checkout"):
            find_run(str(elsewhere), sent.settings)


def test_an_index_that_is_a_second_name_of_a_file_is_not_emptied(sent: Sent) -> None:
    for suffix in ("-shm", "-wal"):
        _is_second_name(f"ledger.db{suffix}")(sent)
    assert sent.run.ledger.entries()
    with pytest.raises(IntegrityError, match="not a file that a2rl makes"):
        Ledger(sent.run.ledger.path).append(RunInterrupted(stage="x"))
    assert sent.victim.read_text() == "a thesis\n"


def test_what_another_process_has_just_appended_is_read(sent: Sent) -> None:
    count = len(sent.run.ledger.entries())
    with closing(sqlite3.connect(sent.run.ledger.path)) as other:  # its log is not in the file yet
        other.execute("DROP TRIGGER no_update")
        other.execute("UPDATE events SET kind = 'edited' WHERE seq = 2")
        other.commit()
        assert (sent.run.root / "ledger.db-wal").stat().st_size
        assert [row.kind for row in sent.run.ledger.rows()][1] == "edited"
        assert len(sent.run.ledger.rows()) == count


def test_a_process_reads_its_own_ledger_while_it_writes(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    for number in range(1, 20):
        ledger.append(RunInterrupted(stage=str(number)))
        assert len(ledger.entries()) == number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.db"]


def test_a_run_on_a_read_only_disk_can_be_read(tmp_path: Path) -> None:
    # Nobody can start root's Python, in which git shows changes of code: as if another version had drawn the page.
    original = finished_run(tmp_path / "checkout", in_full=True, versions={"a2rl": "0"})
    with folder_of_nobody() as folder:
        shutil.copytree(
            original.settings.root, folder / "checkout", symlinks=False, ignore=shutil.ignore_patterns("mlruns")
        )
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        settings = Settings(folder / "checkout", original.settings.environ)

        def read() -> None:
            run = find_run(original.run.id, settings)
            assert [check.problem for check in verify_run(run, None) if check.problem] == []
            [listed] = list_runs(RunDir.all(settings.runs))
            assert listed.state == "done"
            assert len(summaries([run]).runs) == 1
            with pytest.raises(InfrastructureError, match=r"cannot write .*index.html"):
                write_report(run, settings)

        as_nobody(read)


class Store:
    """A store in which another machine has put a copy of a run."""

    def __init__(self, folder: Path, run: RunDir) -> None:
        self.folder, self.store, self._run = folder / "store", ObjectStore(f"file://{folder / 'store'}"), run
        self.files = {"spec.json": self.blob((run.root / "spec.json").read_bytes())}
        self.folders: dict[str, str] = {}

    def blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self.store.write(blob_key(self._run.id, digest), content)
        return digest

    def fetch(self, key: str = "", run_id: str = "") -> RunDir:
        rows = self._run.ledger.rows()
        for row in rows:
            self.store.write(entry_key(self._run.id, row.seq, 1), entry_object(row, 1))
        fields = {
            "run_id": self._run.id, "epoch": 1, "number": 1, "seq": len(rows), "head": rows[-1].hash,
            "epochs": {1: len(rows)}, "files": self.files, "folders": self.folders,
        }  # fmt: skip
        made = CopyManifest.model_validate(fields)
        self.store.write(key or made.key, json.dumps({**fields, "run_id": run_id or self._run.id}).encode())
        return fetch_results(self.folder.parent / "fetched", self.store, key or made.key)


@pytest.fixture
def store(original: Finished, tmp_path: Path) -> Store:
    return Store(tmp_path, original.run)


@pytest.mark.parametrize(
    "name", ["../../was-here", "/tmp/a2rl-was-here", "ledger.db", "ledger.db-journal", "account.db-wal", "workspace/x"]
)
def test_a_file_that_no_run_has_is_not_taken_from_a_store(store: Store, tmp_path: Path, name: str) -> None:
    store.files[name] = store.blob(b"x")
    with pytest.raises(IntegrityError, match="which no run has"):
        store.fetch()
    assert not (tmp_path / "was-here").exists()
    assert not Path("/tmp/a2rl-was-here").exists()


@pytest.mark.parametrize(("seq", "epochs"), [(3, {}), (10**12, {1: 10**12}), (1, {1: 3})])
def test_a_copy_cannot_name_entries_without_end(store: Store, seq: int, epochs: dict[int, int]) -> None:
    made = CopyManifest(run_id="r", epoch=1, number=1, seq=seq, epochs=epochs)
    store.store.write(made.key, made.model_dump_json().encode())
    with pytest.raises(IntegrityError, match="which no run has"):
        read_manifest(store.store, made.key)


def test_a_copy_cannot_say_that_it_is_another_folder(store: Store, tmp_path: Path) -> None:
    (tmp_path / "fetched").mkdir()
    (tmp_path / "fetched" / "dear").write_text("x")
    for key, run_id in (("runs/../manifests/000001-00000001.json", ".."), ("", "another")):
        with pytest.raises(IntegrityError):
            store.fetch(key, run_id)
    assert (tmp_path / "fetched" / "dear").exists()


def test_an_account_from_a_store_is_taken_over_row_by_row(store: Store, tmp_path: Path) -> None:
    Account(tmp_path / "account.db").add("judgement", "x", dollars=0.5)
    store.files["account.db"] = store.blob((tmp_path / "account.db").read_bytes())
    assert Account(store.fetch().account).paid().dollars == 0.5
    store.files["account.db"] = store.blob(database(tmp_path / "x.db", HANGS))
    shutil.rmtree(tmp_path / "fetched")
    with pytest.raises(InfrastructureError, match="other tables or triggers"):
        store.fetch()


def test_a_link_in_a_folder_from_a_store_is_refused(store: Store, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("index.html")
        entry.type, entry.linkname = tarfile.SYMTYPE, "report.json"
        archive.addfile(entry)
    store.folders["report"] = store.blob(packed.getvalue())
    with pytest.raises(IntegrityError, match="which is no file"):
        store.fetch()
