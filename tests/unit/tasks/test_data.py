"""Tests task data on disk: made once, completely or not at all."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Thread
from types import SimpleNamespace

import pytest

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.settings import Settings
from a2rl.task_api import data as module
from a2rl.task_api.contract import Variant
from a2rl.task_api.data import ensure_data, hidden_digest, prepare_data, reading, require_source

RUNS = 4


def test_of_runs_that_start_together_one_makes_the_data(
    settings: Settings,
) -> None:
    """No run takes it from under another."""
    together = Barrier(RUNS)

    def start_of_a_run(_: int) -> tuple[int, str]:
        together.wait()
        data = ensure_data("gsm8k", "mini", None, settings)
        made = (data / "visible").stat().st_ino
        return made, hidden_digest(data)

    with ThreadPoolExecutor(RUNS) as pool:
        seen = set(pool.map(start_of_a_run, range(RUNS)))

    assert len(seen) == 1


def preparer_of(content: str) -> SimpleNamespace:
    """Returns a preparer that writes this text as the data."""

    def prepare(variant: str, source: Path | None, visible: Path, hidden: Path) -> None:
        (visible / "train.jsonl").write_text(content)
        (hidden / "eval.jsonl").write_text(content)

    return SimpleNamespace(prepare=prepare)


def make(content: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "load_preparer", lambda task: preparer_of(content))
    return prepare_data("gsm8k", "mini", None, settings)


def test_data_that_is_made_again_unchanged_stays_in_its_place(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make("same", settings, monkeypatch).stat().st_ino
    assert make("same", settings, monkeypatch).stat().st_ino == before
    assert make("other", settings, monkeypatch).stat().st_ino != before


def test_who_reads_while_it_is_replaced_finds_it_at_every_moment(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, over, missed = make("0", settings, monkeypatch), Event(), []

    def read() -> None:
        while not over.is_set():
            if not (folder / "hidden/eval.jsonl").exists():
                missed.append(1)

    reader = Thread(target=read)
    reader.start()
    for number in range(30):
        make(f"{number}", settings, monkeypatch)
    over.set()
    reader.join()
    assert missed == []


def test_data_that_is_being_read_is_not_replaced(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make("old", settings, monkeypatch)
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    with reading(folder), reading(folder):
        with pytest.raises(InfrastructureError, match="another process"):
            make("new", settings, monkeypatch)
        assert (folder / "hidden/eval.jsonl").read_text() == "old"
    make("new", settings, monkeypatch)
    assert (folder / "hidden/eval.jsonl").read_text() == "new"


def test_what_a_killed_maker_left_is_removed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of other tasks is not."""
    folder = settings.data("gsm8k", "mini")
    left = folder.with_name(".gsm8k-new")
    others = folder.with_name(".gsm8k-two-new")
    for each in (left, others):
        (each / "visible").mkdir(parents=True)
    make("new", settings, monkeypatch)
    assert not left.exists()
    assert others.exists()


def test_a_missing_folder_is_refused_before_preparing_anything(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--source {tmp_path}/typo is not a folder"):
        ensure_data("gsm8k", "full", tmp_path / "typo", settings)
    assert not settings.data("gsm8k", "full").exists()


@pytest.fixture
def lost_mirror(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a folder from which the full data of gsm8k was made, and which is gone."""
    monkeypatch.setattr(module, "load_preparer", lambda task: preparer_of("{}"))
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    ensure_data("gsm8k", "full", mirror, settings)
    mirror.rmdir()
    monkeypatch.setattr(module, "load_preparer", None)
    return mirror


def test_the_folder_is_needed_only_until_the_data_is_prepared(
    lost_mirror: Path, settings: Settings, tmp_path: Path
) -> None:
    require_source("gsm8k", "full", lost_mirror, settings)
    with pytest.raises(UsageError, match="is not a folder"):
        require_source("gsm8k", "full", tmp_path / "other", settings)


@pytest.mark.parametrize(
    ("variant", "with_mirror", "again"), [("mini", False, 2), ("full", True, 2), ("full", False, 1)]
)
def test_data_that_other_code_has_made_is_made_again(
    variant: Variant, with_mirror: bool, again: int, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents are handed parts of that code. Only what came from the hub stays: it may be out of reach."""
    made = []

    def prepare(variant: str, source: Path | None, visible: Path, hidden: Path) -> None:
        made.append(source)
        (visible / "episodes.py").write_text(f"# version {len(made)}")

    monkeypatch.setattr(module, "load_preparer", lambda task: SimpleNamespace(prepare=prepare))
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    source = mirror if with_mirror else None
    data = ensure_data("gsm8k", variant, source, settings)
    ensure_data("gsm8k", variant, None, settings)
    assert len(made) == 1

    monkeypatch.setattr(module, "SHARED_CODE", ("core/files.py",))
    require_source("gsm8k", variant, None, settings)
    ensure_data("gsm8k", variant, None, settings)
    ensure_data("gsm8k", variant, source, settings)
    assert made == [source] * again
    assert (data / "visible" / "episodes.py").read_text() == f"# version {again}"


@pytest.mark.usefixtures("lost_mirror")
def test_data_made_from_a_folder_that_is_gone_stays(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARED_CODE", ("core/files.py",))
    ensure_data("gsm8k", "full", None, settings)
