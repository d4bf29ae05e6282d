"""Hostile bundles lose against `a2rl audit`: nothing is deleted, written elsewhere, sent, or called sound."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from a2rl.bundle import confined
from a2rl.bundle.archive import MAX_BYTES, MAX_FILES, pack
from a2rl.bundle.audit import DIFFERENT, FLAGGED, NOT_DONE, SOUND, UNSOUND, Audit, audit, graded_anew
from a2rl.bundle.confined import Done, Work, audit_bundle
from a2rl.core.errors import A2rlError, UsageError
from a2rl.core.processes import child_environment
from a2rl.core.settings import Settings
from a2rl.judge.params import JudgeParams
from a2rl.results.verify import CheckOutcome, Trust
from a2rl.run.ledger import GENESIS, chain_hash
from tests.bundles import HANGS, MORE_ROWS, VIEW, Members, database, journal_that_deletes, opened, rewritten, with_files
from tests.run_maker import checkout, finished_run

DEEP = b"[" * 200_000
ANNOTATOR = "weighted_alpaca_eval_gpt4_turbo"


class Reader:
    """A reader with a checkout, a file that is dear to them, and an honest bundle of somebody else."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.victim, self.honest = folder, folder / "precious.txt", folder / "honest.tar.gz"
        theirs = finished_run(folder / "theirs", in_full=True, model="tiny")
        pack(theirs.run, self.honest, with_weights=True)
        (folder / "mine" / "models").mkdir(parents=True)
        shutil.copytree(theirs.settings.root / "models" / "small", folder / "mine" / "models" / "tiny")
        shutil.rmtree(folder / "theirs")
        self.settings = checkout(folder / "mine")
        self.settings.environ["A2RL_GPU_LOCKS"] = str(folder / "locks")
        self.reset()

    def reset(self) -> None:
        self.victim.write_text("a thesis\n")

    def audit(self, edit: Callable[[Members], None], regrade: bool = False) -> Audit:
        hostile = rewritten(self.honest, self.folder / "hostile.tar.gz", edit)
        return audit_bundle(hostile, self.settings, frozenset(), None, regrade, MAX_BYTES).audit


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp("reader"))


@pytest.fixture(autouse=True)
def nothing_else_changes(reader: Reader) -> Iterator[None]:
    reader.reset()
    before = _files(reader.folder)
    yield
    assert _files(reader.folder) - {"hostile.tar.gz", "x.db"} == before - {"hostile.tar.gz", "x.db"}
    assert reader.victim.read_text() == "a thesis\n"


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "locks" not in path.parts}


def _member(kind: bytes, link: str = "") -> Callable[[Reader], Callable[[Members], None]]:
    def edit(members: Members) -> None:
        entry = next(entry for entry, _ in members if entry.name == "run/logs/agent.log")
        entry.type, entry.linkname = kind, link

    return lambda reader: edit


def _ledger(change: Callable[[list[list[Any]]], object], *gone: str) -> Callable[[Reader], Callable[[Members], None]]:
    """Changes the rows of the ledger and chains them anew."""

    def edit(members: Members) -> None:
        [text] = [content for entry, content in members if entry.name == "run/ledger.jsonl"]
        rows, previous = [json.loads(line) for line in text.splitlines()], GENESIS
        change(rows)
        for row in rows:
            row[4], row[5] = previous, chain_hash(row[0], row[1], row[2], row[3], previous)
            previous = row[5]
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        with_files({"run/ledger.jsonl": lines, **dict.fromkeys(gone)})(members)

    return lambda reader: edit


def _never_closed(rows: list[list[Any]]) -> None:
    rows[:] = [row for row in rows if row[2] != "run_closed"]
    rows[0][3] = rows[0][3].replace('"closes":true', '"closes":false')


def _index(**changes: Any) -> Callable[[Reader], Callable[[Members], None]]:
    def edit(members: Members) -> None:
        members[0] = members[0][0], json.dumps({**json.loads(members[0][1]), **changes}).encode()

    return lambda reader: edit


def _with(name: str, content: bytes | Callable[[Reader], bytes], **more: bytes) -> Callable[[Reader], Any]:
    return lambda reader: with_files({name: content(reader) if callable(content) else content})


def _longer_than_it_says(members: Members) -> None:
    place = next(place for place, (entry, _) in enumerate(members) if entry.name == "run/logs/agent.log")
    members[place] = members[place][0], bytes(1 << 24)


def _record_of_setup(**changes: Any) -> Callable[[Reader], Callable[[Members], None]]:
    def edit(members: Members) -> None:
        [text] = [content for entry, content in members if entry.name == "run/records/setup.json"]
        with_files({"run/records/setup.json": json.dumps({**json.loads(text), **changes}).encode()})(members)

    return lambda reader: edit


EMPTY = {"bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
HOSTILE: dict[str, Callable[[Reader], Callable[[Members], None]]] = {
    "a journal that deletes a file": lambda reader: with_files({
        "run/ledger.db": database(reader.folder / "x.db"),
        "run/ledger.db-journal": journal_that_deletes(reader.victim),
    }),
    "a trigger that hangs": lambda reader: with_files({"run/ledger.db": database(reader.folder / "x.db", HANGS)}),
    "a trigger that adds rows": lambda reader: with_files(
        {"run/ledger.db": database(reader.folder / "x.db", MORE_ROWS)}
    ),
    "a view": lambda reader: with_files({"run/ledger.db": database(reader.folder / "x.db", VIEW, schema="")}),
    "a write-ahead log": _with("run/ledger.db-wal", b"\x37\x7f\x06\x82" * 100),
    "shared memory": _with("run/ledger.db-shm", b"x" * 32768),
    "an account": lambda reader: with_files({
        "run/account.db": database(reader.folder / "x.db"),
        "run/account.db-journal": journal_that_deletes(reader.victim),
    }),
    "a repository": _with("run/code/.git/config", b"[core]\n\tsshCommand = touch /tmp/was-here\n"),
    "a base model in the run": _with("run/given/models/tiny/config.json", b"{}"),
    "a workspace": _with("run/workspace/code/x.py", b""),
    "a mark of a store": _with("run/stored.json", b'{"seq": 0, "epoch": 0}'),
    "a lock": _with("run/owner.lock", b""),
    "a name that leads out": _with("run/logs/../../../precious.txt", b"x"),
    "an absolute name": lambda reader: with_files({str(reader.victim): b"x"}),
    "hidden data that lead out": _with("hidden/../../precious.txt", b"x"),
    "code of a task": _with("tasks/gsm8k/task.py", b""),
    "a link": lambda reader: _member(tarfile.SYMTYPE, str(reader.victim))(reader),
    "a second name": lambda reader: _member(tarfile.LNKTYPE, str(reader.victim))(reader),
    "a pipe": _member(tarfile.FIFOTYPE),
    "a device": _member(tarfile.CHRTYPE),
    "a file as large as the disk": _index(files={"run/ledger.jsonl": {**EMPTY, "bytes": 1 << 58}}),
    "a file that is longer than it says": lambda reader: _longer_than_it_says,
    "too many files": _index(files={f"run/logs/{number}": EMPTY for number in range(MAX_FILES + 1)}),
    "a name that is too long": _with(f"run/logs/{'x' * 300}", b""),
    "a folder with a file's name": lambda reader: with_files({"run/logs/a": b"", "run/logs/a/b": b""}),
    "a deep list": lambda reader: lambda members: members.__setitem__(0, (members[0][0], DEEP)),
    "a deep ledger": _with("run/ledger.jsonl", DEEP),
    "a ledger of other things": _with("run/ledger.jsonl", b'{"seq": 1}\n'),
    "a ledger with a time without end": _with(
        "run/ledger.jsonl", json.dumps([1, 1e999, "run_opened", "{}", GENESIS, GENESIS]).encode()
    ),
    "deep settings": _with("run/spec.json", b'{"options": ' + DEEP),
    "a deep record": _with("run/records/grade.json", DEEP),
    "deep items": _with("run/grades/baseline.json", DEEP),
    "a deep event": _ledger(lambda rows: rows[3].__setitem__(3, DEEP.decode())),
    "an event that is a number": _with("run/ledger.jsonl", b'[1, 1.0, "run_opened", 7, "", ""]\n'),
    "code that is no code": _with("run/code.bundle", b"# v2 git bundle\n" + b"\0" * 1000),
    "no ledger": lambda reader: with_files({"run/ledger.jsonl": None}),
    "another base model by its path": _record_of_setup(base_model="../../theirs/models/small"),
    "other hidden data by their path": _record_of_setup(hidden="/etc"),
    "a grade that was left out": lambda reader: with_files(
        {"run/grades/baseline.json": None}, **{"grades__baseline.json": "too large"}
    ),
    "a manifest that was left out": lambda reader: with_files(
        {"run/manifest.json": None}, **{"manifest.json": "too large"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_bundle_loses_against_the_audit(reader: Reader, name: str) -> None:
    code, said = UNSOUND, ""
    try:
        hostile = rewritten(reader.honest, reader.folder / "hostile.tar.gz", HOSTILE[name](reader))
        with opened(hostile, reader.settings) as theirs:  # the sandbox has tests of its own
            code = audit(theirs.run, Trust(), None, theirs.absent).exit_code
    except A2rlError as refused:
        said = str(refused)
    assert code == UNSOUND
    assert "\n" not in said


def test_a_damaged_history_of_the_code_is_the_bundles_fault(reader: Reader) -> None:
    edit = _with("run/code.bundle", b"# v2 git bundle\n" + b"\0" * 1000)(reader)
    with pytest.raises(UsageError, match=r"history of the code in the bundle is damaged.*git fetch"):
        reader.audit(edit)


@pytest.mark.parametrize("gone", ["logs/agent.log", "trajectory.json", "twins/seed.txt"])
def test_what_was_left_out_lowers_the_word_whatever_its_reason(reader: Reader, gone: str) -> None:
    files = {f"run/{gone}": None}
    found = reader.audit(with_files(files, **{gone.replace("/", "__"): "too large"}))
    assert found.sound
    assert found.left_out == (gone,)
    assert found.exit_code == FLAGGED


def test_a_run_that_was_never_closed_is_not_valid(reader: Reader) -> None:
    edit = _ledger(_never_closed, "run/manifest.json", "run/signatures.jsonl", "run/published.jsonl")
    found = reader.audit(edit(reader))
    assert found.exit_code in {UNSOUND, FLAGGED}


def test_the_honest_bundle_is_sound_in_the_sandbox(reader: Reader) -> None:
    found = reader.audit(lambda members: None)
    assert [check.problem for check in found.checks if check.problem] == []
    assert found.exit_code == SOUND


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a journal that deletes a file", "cannot have a file"),
        ("a file that is longer than it says", "its list does not have like that"),
    ],
)
def test_the_command_refuses_a_hostile_bundle(reader: Reader, name: str, says: str) -> None:
    rewritten(reader.honest, reader.folder / "hostile.tar.gz", HOSTILE[name](reader))
    done = subprocess.run(
        [sys.executable, "-c", "from a2rl.cli import main; main()", "audit", str(reader.folder / "hostile.tar.gz")],
        env={**os.environ, "A2RL_ROOT": str(reader.settings.root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == NOT_DONE
    assert says in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


CONFINED = """
import os, socket, sys
from pathlib import Path
from a2rl.bundle.confined import Work, _confine
from a2rl.core.settings import Settings
scratch, outside, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
work = Work(bundle=scratch, scratch=scratch, max_bytes=1, keys=frozenset(), published=None, gpu_locks=scratch)
_confine(work, Settings.load())
(scratch / "mine").write_text("x")
tries = {
    "write": lambda: (outside / "new").write_text("x"),
    "change": lambda: (outside / "file").open("a"),
    "delete": lambda: (outside / "file").unlink(),
    "read": lambda: (outside / "file").read_text(),
    "connect": lambda: socket.create_connection(("127.0.0.1", port), 5),
    "send": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)),
}
for name, work in tries.items():
    try:
        work()
    except OSError:
        continue
    print(name)
"""


def test_the_audit_writes_only_to_its_scratch_folder(tmp_path: Path, repository: Path) -> None:
    """It reaches nobody either."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("dear")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", CONFINED, str(tmp_path / "scratch"), str(tmp_path / "outside"), port],
            cwd=repository,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.stdout, done.stderr) == ("", "")
    assert (tmp_path / "scratch" / "mine").exists()
    assert [path.read_text() for path in (tmp_path / "outside").iterdir()] == ["dear"]


GIT_CONFINED = """
import os, sys
from pathlib import Path
from a2rl.bundle.confined import Work, _confine
from a2rl.core.settings import Settings
from a2rl.recording.code_history import git_version
scratch, os.defpath = Path(sys.argv[1]), "/none"  # the system has no git
work = Work(bundle=scratch, scratch=scratch, max_bytes=1, keys=frozenset(), published=None, gpu_locks=scratch)
_confine(work, Settings.load())
print(git_version())
"""


def test_the_audit_can_run_the_git_of_its_user(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (git := tmp_path / "own" / "bin" / "git").parent.mkdir(parents=True)
    git.write_text("#!/bin/sh\necho git of its user\n")
    git.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", GIT_CONFINED, str(tmp_path / "scratch")],
        cwd=repository,
        env={**os.environ, "PATH": str(git.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("git of its user\n", "")


HUB_CONFINED = """
import sys
from pathlib import Path
from huggingface_hub import get_token
from a2rl.bundle.confined import Work, _confine
from a2rl.core.settings import Settings
from a2rl.models.base_model import local_folder
scratch, settings = Path(sys.argv[1]), Settings.load()
work = Work(bundle=scratch, scratch=scratch, max_bytes=1, keys=frozenset(), published=None, gpu_locks=scratch)
_confine(work, settings)
print((local_folder("them/model", settings) / "config.json").read_text(), get_token())
for name in ("token", "stored_tokens"):
    try:
        print((Path(settings.environ["HF_HOME"]) / name).read_text())
    except PermissionError:
        pass
"""


def test_the_audit_reads_models_of_the_hub_but_no_token(tmp_path: Path, settings: Settings, repository: Path) -> None:
    (tmp_path / "scratch").mkdir()
    model = tmp_path / "home" / "hub" / "models--them--model"
    (model / "snapshots" / "abc").mkdir(parents=True)
    (model / "snapshots" / "abc" / "config.json").write_text("a model")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    for name in ("token", "stored_tokens"):
        (tmp_path / "home" / name).write_text("hf_of_the_reader")
    settings.environ["HF_HOME"] = str(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-c", HUB_CONFINED, str(tmp_path / "scratch")],
        env={**child_environment(settings), "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("a model None\n", "")


@pytest.mark.heavy
def test_a_judge_of_a_stranger_gets_neither_a_request_nor_a_key(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reader.settings.environ, "OPENAI_API_KEY", "sk-of-the-reader")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        judge = JudgeParams(base_url=url, model="m", annotator=ANNOTATOR, decoding={})
        theirs = finished_run(tmp_path / "theirs", in_full=True, model="tiny", judge=judge)
        pack(theirs.run, tmp_path / "judged.tar.gz", with_weights=True)
        found = audit_bundle(tmp_path / "judged.tar.gz", reader.settings, frozenset(), None, True, MAX_BYTES).audit
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()
    assert "params.yaml does not have" in found.not_regraded["the checkpoint that counts"]
    assert found.exit_code == NOT_DONE


@pytest.mark.heavy
def test_a_template_or_configuration_in_a_bundle_decides_nothing(reader: Reader, tmp_path: Path) -> None:
    """With both, the checkpoint could not even be loaded."""

    def edit(members: Members) -> None:
        folders = {entry.name.rpartition("/")[0] for entry, _ in members if entry.name.startswith("run/submissions/")}
        for name in ("config.json", "tokenizer_config.json", "chat_template.jinja"):
            with_files({f"{folder}/{name}": b"{{ the answers }}" for folder in folders})(members)

    hostile = rewritten(reader.honest, tmp_path / "hostile.tar.gz", edit)
    with opened(hostile, reader.settings) as theirs:
        found = graded_anew(
            Audit(run_id=theirs.run.id, checks=(), validity=None), theirs.run, theirs.settings, theirs.absent
        )
    assert [each.split for each in found.regrades] == ["private", "private"]
    assert found.not_regraded == {}


def test_a_bundle_that_is_not_sound_is_not_graded_anew(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """That could take hours, and would change nothing."""
    works: list[Work] = []

    def checks(work: Work, *_: object) -> Done:
        works.append(work)
        wrong = CheckOutcome("a check", problem="it fails")
        return Done(audit=Audit(run_id="x", checks=(wrong,), validity=None))

    monkeypatch.setattr(confined, "_run", checks)
    assert reader.audit(lambda members: None, regrade=True).exit_code == UNSOUND
    assert [work.checked for work in works] == [None]


@pytest.mark.heavy
def test_a_bundle_is_graded_anew_in_the_sandbox(reader: Reader) -> None:
    found = reader.audit(lambda members: None, regrade=True)
    assert found.not_regraded == {}
    assert len(found.regrades) == 2
    assert found.exit_code == DIFFERENT  # the first grades were those of a fake grader
