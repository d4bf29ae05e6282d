"""Tests bundles: a run survives the way to another machine, and hostile bundles do no harm."""

import gzip
import json
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.anchor.signatures import load_public_key
from a2rl.anchor.signing import Signer, sign_heads
from a2rl.bundle.archive import INDEX, pack, unpack
from a2rl.bundle.audit import FLAGGED, SOUND, UNSOUND, VOID, Audit, audit
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.settings import Settings
from a2rl.judge.account import Account
from a2rl.judge.params import JudgeParams
from a2rl.models.checkpoint import weights_digest
from a2rl.recording.code_history import commits
from a2rl.recording.code_reading import code_at
from a2rl.recording.trajectory import read_summary
from a2rl.results.verify import Trust
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted, SubmissionAccepted, SubmissionRefused
from a2rl.run.failure import record_failure
from a2rl.run.inputs import hidden_of
from a2rl.run.ledger import chain_hash
from a2rl.run.records import GradeRecord
from a2rl.task_api.data import hidden_digest
from a2rl.validity.record import Finding, lower
from stages.report import report
from stages.validity import validity
from tests.bundles import audited_here, opened, rewritten, with_files
from tests.run_maker import Finished, checkout, finish, finished_run, make_run, prepare_mlflow, spec
from tests.signing_key import make_key, public_path
from tests.small_model import build_base_model

KEY = "sk-ant-" + "a1b2c3d4" * 4


class Given:
    """A bundle that was made in another checkout, which is gone, and what its reader knows."""

    def __init__(self, bundle: Path, settings: Settings, key: str) -> None:
        self.bundle, self.settings, self.trust = bundle, settings, Trust(frozenset({key}))

    def audit(self, bundle: Path | None = None) -> Audit:
        with opened(bundle or self.bundle, self.settings) as theirs:
            return audit(theirs.run, self.trust, None, theirs.absent)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    folder = tmp_path_factory.mktemp("bundle")
    theirs: Finished = finished_run(folder / "theirs", in_full=True)
    make_key(folder / "key")
    sign_heads(theirs.run, Signer(folder / "key"))
    pack(theirs.run, folder / "run.tar.gz", with_weights=True)
    shutil.rmtree(folder / "theirs")
    (folder / "mine").mkdir()
    return Given(folder / "run.tar.gz", checkout(folder / "mine"), load_public_key(public_path(folder / "key")))


def test_a_stranger_finds_a_run_sound_from_its_bundle_alone(given: Given) -> None:
    found = given.audit()
    assert [f"{each.what}: {each.problem}" for each in found.checks if each.problem] == []
    assert {each.what for each in found.checks if each.not_checked} == {
        "MLflow shows what the ledger says", "the ledger has the heads that were published",
    }  # fmt: skip
    assert found.validity is not None
    assert found.left_out == ()
    assert found.exit_code == {"valid": SOUND, "flagged": FLAGGED}[found.validity.word]


def test_what_a_bundle_lacks_of_its_judge_is_not_checked(tmp_path: Path, given: Given) -> None:
    (tmp_path / "theirs").mkdir()
    settings, judge = checkout(tmp_path / "theirs"), JudgeParams(name="dear", model="m", annotator="alpaca_eval_gpt4")
    base_model = build_base_model(settings.models / "small")
    prepare_mlflow(settings)
    run = make_run(settings, base_model, movable=True, judge=judge)
    Account(run.account).add("judgement", "x-public", 1000, 10, 1.25)
    finish(run, settings, base_model)
    pack(run, tmp_path / "run.tar.gz", with_weights=True)
    found = audited_here(tmp_path / "run.tar.gz", given.settings).audit
    assert found is not None
    assert [each.problem for each in found.checks if each.problem] == []
    assert "the judge's account is not here" in {each.not_checked for each in found.checks}
    run.account.unlink()  # a run of one's own has it
    assert [each.what for each in audit(run, Trust(), None).checks if each.problem] == [
        "the judge was paid what the record says"
    ]


@pytest.fixture
def begun(tmp_path: Path) -> RunDir:
    """A run whose agent is at work."""
    (tmp_path / "theirs").mkdir()
    settings = checkout(tmp_path / "theirs")
    return make_run(settings, build_base_model(settings.models / "small"))


def test_hidden_files_come_along_whatever_their_names(tmp_path: Path, begun: RunDir) -> None:
    (pages := hidden_of(begun) / "pages").mkdir()
    for name in ("Émile Zola.txt", "(500) Days of Summer.txt", ".notes", "x.txt"):
        (pages / name).write_text(name)
    (pages / "linked.txt").symlink_to("x.txt")
    pack(begun, tmp_path / "run.tar.gz", with_weights=False)
    unpack(tmp_path / "run.tar.gz", tmp_path / "out")
    assert hidden_digest(tmp_path / "out") == hidden_digest(hidden_of(begun).parent)


def test_files_that_an_audit_would_refuse_are_not_packed(
    tmp_path: Path, begun: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    (odd := hidden_of(begun) / "a\nb.txt").touch()
    with pytest.raises(UsageError, match=r"hidden/a\\nb\.txt"):
        pack(begun, tmp_path / "run.tar.gz", with_weights=False)
    odd.unlink()
    monkeypatch.setattr("a2rl.bundle.archive.MAX_FILES", 3)
    with pytest.raises(UsageError, match="more than 3 files"):
        pack(begun, tmp_path / "run.tar.gz", with_weights=False)
    assert not list(tmp_path.glob("*.tar.gz*"))


def test_a_bundle_that_was_interrupted_leaves_no_file(
    tmp_path: Path, begun: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("a2rl.bundle.archive._add_member", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack(begun, tmp_path / "run.tar.gz", with_weights=False)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize("target", ["theirs", "none/run.tar.gz"])
def test_a_bundle_without_a_place_is_refused_at_once(
    tmp_path: Path, begun: RunDir, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Nothing is read for it, which could take hours."""
    monkeypatch.delattr("a2rl.bundle.archive._members")
    with pytest.raises(UsageError, match="give a file in a folder that exists"):
        pack(begun, tmp_path / target, with_weights=False)


def test_labels_of_a_judge_and_set_aside_states_are_nothing_new(tmp_path: Path, given: Given) -> None:
    with opened(given.bundle, given.settings) as theirs:
        run = theirs.run
        Account(run.root / "labels-account.db").add("judgement", "labels", 1, 1, 1.0)
        (run.root / ".replaced" / "20260412-093015").mkdir(parents=True)
        (run.root / ".replaced" / "20260412-093015" / "spec.json").write_text("{}")
        assert audit(run, given.trust, None, theirs.absent).sound
        assert pack(run, tmp_path / "again.tar.gz", with_weights=True).left_out == {}


def test_a_run_that_failed_in_its_setup_can_be_bundled(tmp_path: Path, given: Given) -> None:
    (tmp_path / "theirs").mkdir()
    settings = checkout(tmp_path / "theirs")
    run = RunDir.create(settings.runs, spec())
    record_failure(run, "setup", InfrastructureError("the disk is full"))
    validity(run, settings)
    report(run, settings)
    bundle = tmp_path / "run.tar.gz"
    pack(run, bundle, with_weights=True)
    done = audited_here(bundle, given.settings)
    assert done.audit is not None
    assert done.audit.exit_code == VOID
    assert done.shown is not None
    run.ledger.append(AgentStarted(attempt=1, elapsed_s=0.0))  # an agent cannot start in a run that was not set up
    assert not audit(run, Trust(), None).sound


def test_what_an_agent_says_is_read_whatever_bytes_it_has(given: Given) -> None:
    with opened(given.bundle, given.settings) as theirs:
        assert list(read_summary(theirs.run)) == ["summary.md"]
        (theirs.run.root / "claims" / "summary.md").write_bytes(b"\xff" * (8 << 20))
        assert len(read_summary(theirs.run)["summary.md"]) <= 1 << 20


def test_a_bundle_without_weights_says_what_is_not_checked(tmp_path: Path, given: Given) -> None:
    """It is sound."""
    with opened(given.bundle, given.settings) as theirs:
        index = pack(theirs.run, tmp_path / "small.tar.gz", with_weights=False)
        again = pack(theirs.run, tmp_path / "again.tar.gz", with_weights=False)
    assert (tmp_path / "small.tar.gz").read_bytes() == (tmp_path / "again.tar.gz").read_bytes()
    assert index == again
    assert not any(name.endswith(".safetensors") for name in index.files)
    found = given.audit(tmp_path / "small.tar.gz")
    assert found.sound
    assert [each.not_checked for each in found.checks if "checkpoints" in each.what] == ["the weights are not here"]


def test_of_the_weights_those_of_the_result_come_along(given: Given) -> None:
    """Nothing else is graded anew, and ten checkpoints of a large model would be too much to hand in."""
    with opened(given.bundle, given.settings) as theirs:
        record = theirs.run.need("grade", GradeRecord)
        digests = {each.submission_id: each.weights_digest for each in theirs.run.ledger.events(SubmissionAccepted)}
        chosen = digests.pop(record.submission_id or 0)
        assert list(theirs.run.root.rglob("*.safetensors")) == list(theirs.run.checkpoint(chosen).glob("*.safetensors"))
        assert theirs.absent.weights == set(digests.values())
        assert weights_digest(theirs.run.checkpoint(chosen)) == chosen
    [found] = [each for each in given.audit().checks if "checkpoints" in each.what]
    assert (found.problem, found.note) == ("", "the weights of 2 checkpoints are not here")


def test_a_file_with_a_key_is_left_out_and_named(tmp_path: Path, given: Given) -> None:
    with opened(given.bundle, given.settings) as theirs:
        (theirs.run.logs / "agent.log").write_text(f"key {KEY}\n")
        index = pack(theirs.run, tmp_path / "run.tar.gz", with_weights=False)
    assert list(index.left_out) == ["logs/agent.log"]
    assert KEY.encode() not in gzip.decompress((tmp_path / "run.tar.gz").read_bytes())


def test_no_name_of_an_agents_choice_keeps_the_ledger_back(tmp_path: Path, begun: RunDir) -> None:
    """A path that is many keys, one after the other, for example."""
    begun.ledger.append(SubmissionRefused(elapsed_s=1.0, model_path="AKIA0123456789ABCDEF" * 8, reason="it is none"))
    assert pack(begun, tmp_path / "run.tar.gz", with_weights=False).left_out == {}


def test_a_run_is_not_bundled_without_its_ledger(
    tmp_path: Path, begun: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.bundle.archive._has_secret", lambda path: path.name == "ledger.jsonl")
    with pytest.raises(UsageError, match=r"no bundle can be without ledger\.jsonl"):
        pack(begun, tmp_path / "run.tar.gz", with_weights=False)


def test_a_lowered_validity_is_what_the_audit_ends_with(given: Given) -> None:
    for level, code in (("flag", FLAGGED), ("void", VOID)):
        with opened(given.bundle, given.settings) as theirs:
            (theirs.run.root / "signatures.jsonl").unlink()  # there would be none of the new entry
            lower(theirs.run, [Finding.of("test", level, "A test found something.")])  # type: ignore[arg-type]
            found = audit(theirs.run, Trust(), None, theirs.absent)
            assert found.sound
            assert found.exit_code == code


def test_another_key_than_the_trusted_one_makes_a_bundle_unsound(tmp_path: Path, given: Given) -> None:
    other = Given(given.bundle, given.settings, make_key(tmp_path / "other").id)
    assert other.audit().exit_code == UNSOUND


def test_a_bundle_is_signed_to_its_end(tmp_path: Path, given: Given) -> None:
    """Otherwise anybody could write another end to a run, as if it had only now been written."""

    def prolonged(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        [ledger] = [content for entry, content in members if entry.name == "run/ledger.jsonl"]
        rows = [json.loads(line) for line in ledger.splitlines()]
        more = [len(rows) + 1, time.time(), "run_interrupted", '{"stage":"execute"}', rows[-1][5]]
        row = json.dumps([*more, chain_hash(*more)]).encode()
        with_files({"run/ledger.jsonl": ledger + row + b"\n"})(members)

    found = given.audit(rewritten(given.bundle, tmp_path / "prolonged.tar.gz", prolonged))
    [signed] = [check for check in found.checks if "signed" in check.what]
    assert "are not signed" in signed.problem


def test_the_code_of_the_agent_comes_along_with_its_history(given: Given) -> None:
    with opened(given.bundle, given.settings) as theirs:
        [last, *_] = commits(theirs.run.code)
        assert code_at(theirs.run.code, last) == {"train.py": "print(1)\n"}
        assert not [each for each in given.audit().checks if "code" in each.what and each.problem]


def test_a_run_that_has_not_begun_is_not_bundled(tmp_path: Path) -> None:
    settings = checkout(tmp_path)
    run = make_run(settings, build_base_model(tmp_path / "models" / "small"))
    run.ledger.path.unlink()
    with pytest.raises(UsageError, match="has not begun"):
        pack(run, tmp_path / "run.tar.gz", with_weights=False)


def _link(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    entry = members[1][0]
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"


def _device(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members[1][0].type = tarfile.CHRTYPE


def _twice(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members.append(members[1])


def _not_listed(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members.append((tarfile.TarInfo("run/more"), b"more"))


def _missing(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members.pop()


def _changed(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    entry, content = members[-1]
    members[-1] = entry, content[:-1] + b"!"


def _named(name: str) -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]:
    def rename(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        index, old = json.loads(members[0][1]), members[1][0].name
        index["files"][name] = index["files"].pop(old)
        members[0] = members[0][0], json.dumps(index).encode()
        members[1][0].name = name

    return rename


def _no_index(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members.pop(0)


def _other_run_id(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    index = json.loads(members[0][1])
    members[0] = members[0][0], json.dumps({**index, "run_id": "../../x"}).encode()


HOSTILE = {
    "link": _link, "device": _device, "twice": _twice, "not listed": _not_listed, "missing": _missing,
    "changed": _changed, "absolute": _named("/tmp/a2rl-was-here"), "parent": _named("run/../../was-here"),
    "git": _named("run/code/.git/config"), "elsewhere": _named("tasks/gsm8k/task.py"), "no index": _no_index,
    "long": _named("run/" + "x" * 500), "dot": _named("run/./x"), "control": _named("run/a\x1b[2Jb"),
    "hidden parent": _named("hidden/../../was-here"), "hidden dot": _named("hidden/./x"), "no name": _named("hidden/"),
    "hidden absolute": _named("hidden//tmp/a2rl-was-here"), "hidden control": _named("hidden/a\x1b[2Jb"),
    "run id": _other_run_id,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_bundle_is_refused_in_one_line(tmp_path: Path, given: Given, name: str) -> None:
    hostile = rewritten(given.bundle, tmp_path / "hostile.tar.gz", HOSTILE[name])
    with pytest.raises(UsageError) as caught:
        unpack(hostile, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "was-here").exists()
    assert not Path("/tmp/a2rl-was-here").exists()


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path, given: Given) -> None:
    with pytest.raises(UsageError, match="more than"):
        unpack(given.bundle, tmp_path / "out", max_bytes=1000)
    (tmp_path / "huge.tar.gz").write_bytes(_tar_with_size(INDEX, 1 << 40))
    (tmp_path / "header.tar.gz").write_bytes(_tar_with_size("x", 1 << 33, tarfile.XHDTYPE))
    (tmp_path / "noise.tar.gz").write_bytes(b"noise" * 100)
    for name in ("huge", "header", "noise"):
        with pytest.raises(UsageError):
            unpack(tmp_path / f"{name}.tar.gz", tmp_path / name)


def test_headers_that_no_bundle_has_are_not_read(tmp_path: Path, given: Given) -> None:
    """The standard library would take hours for the first, and gigabytes of memory for the second."""
    honest = gzip.decompress(given.bundle.read_bytes())
    size = int(tarfile.TarInfo.frombuf(honest[:512], "utf-8", "strict").size)
    end_of_index = 512 + size + -size % 512
    sparse = tarfile.TarInfo("run/logs/x")
    sparse.type = tarfile.GNUTYPE_SPARSE
    for more in (
        _header(tarfile.XHDTYPE, b"1" * (8 << 20)), _header(tarfile.XGLTYPE, b"17 comment=abcde\n"),
        _header(tarfile.GNUTYPE_LONGNAME, b"x" * 5000), _header(tarfile.XHDTYPE, b"-3 path=x\n"),
        _header(tarfile.XHDTYPE, b"9 path=\xff\n"), _header(tarfile.XHDTYPE, b"11 size=-1\n"), sparse.tobuf(),
    ):  # fmt: skip
        hostile = tmp_path / "hostile.tar.gz"
        hostile.write_bytes(gzip.compress(honest[:end_of_index] + more + honest[end_of_index:]))
        with pytest.raises(UsageError):
            unpack(hostile, tmp_path / "out")
        shutil.rmtree(tmp_path / "out")


def _header(kind: bytes, content: bytes) -> bytes:
    entry = tarfile.TarInfo("header")
    entry.type, entry.size = kind, len(content)
    return entry.tobuf() + content + bytes(-len(content) % 512)


def test_files_with_long_names_come_along(tmp_path: Path, given: Given) -> None:
    name = f"run/logs/{'long/' * 40}caf\u00e9"
    long = rewritten(given.bundle, tmp_path / "long.tar.gz", with_files({name: b"text"}))
    unpack(long, tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == b"text"


def _tar_with_size(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    return gzip.compress(entry.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
