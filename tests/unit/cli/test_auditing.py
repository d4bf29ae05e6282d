"""Tests the commands `a2rl bundle` and `a2rl audit`: what they print, and their exit codes."""

import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from a2rl.cli import main
from a2rl.core.settings import Settings
from stages.grade import grade
from stages.validity import validity
from tests.run_maker import Finished, checkout, end_agent, finished_run, make_run
from tests.small_model import build_base_model

KEY = "sk-ant-" + "a1b2c3d4" * 4


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


Command = Callable[..., Done]


@pytest.fixture
def a2rl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in a checkout, in this process."""

    def run(settings: Settings, *arguments: object) -> Done:
        monkeypatch.setenv("A2RL_ROOT", str(settings.root))
        monkeypatch.setattr("sys.argv", ["a2rl", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run, in whose log is a key."""
    found = finished_run(tmp_path_factory.mktemp("theirs") / "checkout", in_full=True)
    (found.run.logs / "agent.log").write_text(f"key {KEY}\n")
    return found


@pytest.fixture
def mine(tmp_path: Path) -> Settings:
    """The checkout of somebody else."""
    (tmp_path / "mine").mkdir()
    return checkout(tmp_path / "mine")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


@pytest.fixture
def bundle(a2rl: Command, bundles: Path, tmp_path: Path) -> Path:
    """The bundle of a run without a secret, with weights; it is made once, and the run is gone."""
    made = bundles / "result.tar.gz"
    if not made.exists():
        found = finished_run(bundles / "theirs", in_full=True)
        done = a2rl(found.settings, "bundle", found.run.id, "--with-weights", "-o", made)
        assert done.code == 0, done.err
        shutil.rmtree(bundles / "theirs")
    return Path(shutil.copy(made, tmp_path))


@pytest.mark.heavy
def test_a_bundle_is_found_sound_in_another_checkout(a2rl: Command, bundle: Path, mine: Settings) -> None:
    done = a2rl(mine, "audit", bundle, "--json")
    assert done.code == 0, done.out
    assert (done.json["sound"], done.json["validity"]["word"]) == (True, "valid")
    assert all(not check["problem"] for check in done.json["checks"])
    assert not (mine.root / "runs").exists()
    assert list(mine.root.glob("*.jsonl")) == []


@pytest.mark.heavy
def test_grading_anew_without_the_base_model_says_so(a2rl: Command, bundle: Path, mine: Settings) -> None:
    """The checks are still shown."""
    done = a2rl(mine, "audit", bundle, "--regrade", "--json")
    assert done.code == 2
    assert done.json["sound"]
    assert "is not on this machine" in done.json["not_regraded"]["the checkpoint that counts"]
    assert "ok     the ledger's hash chain" in done.out


@pytest.mark.heavy
def test_grading_anew_without_weights_says_who_has_them(
    a2rl: Command, theirs: Finished, mine: Settings, tmp_path: Path
) -> None:
    """It does not say that they were changed."""
    a2rl(theirs.settings, "bundle", theirs.run.id, "-o", tmp_path / "small.tar.gz")
    shutil.copytree(theirs.settings.root / "models", mine.root / "models")
    done = a2rl(mine, "audit", tmp_path / "small.tar.gz", "--regrade", "--json")
    assert "made with --with-weights" in done.json["not_regraded"]["the checkpoint that counts"]


def test_a_key_in_a_log_is_not_in_the_bundle(a2rl: Command, theirs: Finished, tmp_path: Path) -> None:
    """The file of the key is named."""
    done = a2rl(theirs.settings, "bundle", theirs.run.id, "-o", tmp_path / "run.tar.gz")
    assert done.code == 0
    assert "left out logs/agent.log" in done.out
    assert KEY.encode() not in gzip.decompress((tmp_path / "run.tar.gz").read_bytes())


def test_a_key_of_the_environment_is_not_in_the_bundle_either(
    a2rl: Command, theirs: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (theirs.run.logs / "service.log").write_text("asked with swordfish-of-no-known-form-42\n")
    monkeypatch.setenv("OPENAI_API_KEY", "swordfish-of-no-known-form-42")
    done = a2rl(theirs.settings, "bundle", theirs.run.id, "-o", tmp_path / "run.tar.gz")
    assert done.code == 0
    assert b"swordfish" not in gzip.decompress((tmp_path / "run.tar.gz").read_bytes())


def test_an_edited_file_makes_the_run_unsound(a2rl: Command, bundle: Path, mine: Settings, tmp_path: Path) -> None:
    """This holds although the list of the bundle was corrected."""
    forged = tmp_path / "forged.tar.gz"
    _edit(bundle, forged, "run/records/grade.json", lambda text: text.replace('"improvement"', '"improvement" '))
    done = a2rl(mine, "audit", forged, "--json")
    assert done.code == 1
    assert any("records/grade.json" in check["problem"] for check in done.json["checks"])


def test_an_edited_ledger_makes_the_run_unsound(a2rl: Command, bundle: Path, mine: Settings, tmp_path: Path) -> None:
    forged = tmp_path / "forged.tar.gz"
    _edit(bundle, forged, "run/ledger.jsonl", lambda text: text.replace("output/v1", "output/v9"))
    done = a2rl(mine, "audit", forged, "--json")
    assert done.code == 1
    assert not done.json["sound"]


def _edit(bundle: Path, target: Path, name: str, change: Callable[[str], str]) -> None:
    """Changes a file, and its digest in the list, as a forger would."""
    from hashlib import sha256

    with tarfile.open(bundle) as archive:
        members = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
    before = members[name]
    members[name] = change(before.decode()).encode()
    assert members[name] != before
    index = json.loads(members["bundle.json"])
    index["files"][name] = {"bytes": len(members[name]), "sha256": sha256(members[name]).hexdigest()}
    members["bundle.json"] = json.dumps(index).encode()
    with tarfile.open(target, "w:gz") as archive:
        for each, content in members.items():
            entry = tarfile.TarInfo(each)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.98])
def test_a_bundle_that_was_cut_off_cannot_be_audited(
    a2rl: Command, bundle: Path, mine: Settings, tmp_path: Path, kept: float
) -> None:
    content = bundle.read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(content[: int(kept * len(content))])
    _refused(a2rl(mine, "audit", tmp_path / "cut.tar.gz"), "not a bundle|is damaged|lacks")


@pytest.mark.parametrize(
    ("name", "content"), [("noise.tar.gz", b"noise" * 99), ("plain.tar.gz", gzip.compress(b"plain text", mtime=0))]
)
def test_a_file_that_is_no_bundle_cannot_be_audited(
    a2rl: Command, mine: Settings, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    _refused(a2rl(mine, "audit", tmp_path / name), "not a bundle|is damaged")


def test_what_does_not_exist_cannot_be_audited_or_bundled(a2rl: Command, mine: Settings, tmp_path: Path) -> None:
    _refused(a2rl(mine, "audit", tmp_path / "none.tar.gz"), "there is no file")
    _refused(a2rl(mine, "audit", "gsm8k-noop-1"), "gsm8k-noop-1")
    _refused(a2rl(mine, "bundle", "gsm8k-noop-1"), "gsm8k-noop-1")


def test_a_bundle_larger_than_allowed_is_refused(a2rl: Command, bundle: Path, mine: Settings) -> None:
    _refused(a2rl(mine, "audit", bundle, "--max-gb", "0.00001"), "--max-gb")


def test_a_bundle_is_not_written_into_a_missing_folder(a2rl: Command, theirs: Finished) -> None:
    done = a2rl(theirs.settings, "bundle", theirs.run.id, "-o", "/none/such/run.tar.gz")
    assert done.code != 0
    assert len(done.err.splitlines()) == 1


def _refused(done: Done, why: str) -> None:
    import re

    assert done.code == 2, done
    assert re.search(why, done.err), done.err
    assert len(done.err.splitlines()) == 1
    assert "Traceback" not in done.err


@pytest.mark.heavy
def test_a_run_without_a_result_is_sound_and_ends_with_4(a2rl: Command, mine: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    settings = checkout(folder)
    run = make_run(settings, build_base_model(folder / "models" / "small"), movable=True)
    end_agent(run)
    grade(run, settings)
    validity(run, settings)
    assert a2rl(settings, "bundle", run.id, "-o", tmp_path / "run.tar.gz").code == 0
    done = a2rl(mine, "audit", tmp_path / "run.tar.gz", "--regrade", "--json")
    assert (done.code, done.json["sound"], done.json["not_regraded"]) == (4, True, {})
