"""Tests what a baseline's key depends on: everything by which two grades of the same model can differ."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from a2rl.core.files import digest_of, read_model
from a2rl.core.settings import Settings
from a2rl.grading import dependencies
from a2rl.grading.baseline import BaselineKey
from a2rl.grading.dependencies import baseline_key, code_of
from a2rl.grading.job import GradeJob
from a2rl.judge.params import JudgeParams
from a2rl.sampling.engine_params import VllmParams
from a2rl.sampling.generation import Generation
from a2rl.task_api.catalog import task_ids
from tests.run_maker import REPOSITORY, grade_job_in

TASKS = task_ids(REPOSITORY)


@pytest.fixture
def job(tmp_path: Path) -> GradeJob:
    return grade_job_in(tmp_path, task="humaneval")


Key = Callable[..., dict[str, str]]


@pytest.fixture
def key(job: GradeJob, settings: Settings) -> Key:
    def key(gpus: tuple[str, ...] = (), **changes: object) -> dict[str, str]:
        return baseline_key(job.model_copy(update=changes), "m", "d", settings, gpus)

    return key


def test_baselines_of_cpu_and_of_each_model_of_gpu_differ(key: Key) -> None:
    keys = [key(), key(("NVIDIA H100",)), key(("NVIDIA A100",)), key(("NVIDIA A100", "NVIDIA H100"))]
    assert len({str(each) for each in keys}) == 4
    assert [each["dtype"] for each in keys] == ["float32", "bfloat16", "bfloat16", "bfloat16"]
    assert key(dtype="float32") == key()


def test_the_number_of_gpus_counts_only_where_each_draws_numbers(key: Key) -> None:
    """These are random numbers of its own."""
    one, two = ("NVIDIA H100",), ("NVIDIA H100", "NVIDIA H100")
    assert key(one) == key(two)
    sampled = Generation(temperature=0.6)
    assert key(one, generation=sampled) != key(two, generation=sampled)


def test_processors_that_round_differently_have_own_baselines(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    known = key()
    monkeypatch.setattr(dependencies, "cpu_flags", lambda: frozenset({"fpu", "asimd"}))
    assert key() != known
    assert key(("NVIDIA H100",))["device"] == "NVIDIA H100"


def test_the_versions_in_vllms_own_environment_count_for_vllm(
    job: GradeJob, settings: Settings, tmp_path: Path
) -> None:
    def of(version: str) -> dict[str, str]:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\necho \'{{"vllm": "{version}"}}\'\n')
        python.chmod(0o700)
        there = replace(settings, environ={**settings.environ, "A2RL_VLLM_PYTHON": str(python)})
        return baseline_key(job.model_copy(update={"backend": "vllm", "vllm": VllmParams()}), "m", "d", there)

    assert of("0.32.0") != of("0.33.0")
    assert '"vllm":"0.32.0"' in of("0.32.0")["vllm"]
    assert "torch" in str(dependencies.vllm_versions(with_own_python(settings)))


def with_own_python(settings: Settings) -> Settings:
    return replace(settings, environ={**settings.environ, "A2RL_VLLM_PYTHON": sys.executable})


def test_variant_and_judge_count(key: Key) -> None:
    judges = [JudgeParams(model="judge", base_url=f"https://{host}/v1") for host in ("one", "other")]
    keys = [key(), key(variant="full"), *(key(judge=each) for each in judges)]
    assert len({str(each) for each in keys}) == 4


@pytest.mark.parametrize(
    ("task", "path"),
    [
        *((each, f"a2rl/{path}") for each in TASKS for path in (
            "grading/job.py", "scoring/score.py", "scoring/means.py",
            "sampling/transformers_backend.py", "sampling/decoder/engine.py", "sampling/vllm_worker.py",
            "sampling/vllm_weights.py", "sampling/generation.py", "task_api/split.py",
        )),
        *((each, f"tasks/{each}/{path}.py") for each in TASKS for path in ("grade", "task")),
        *(("humaneval", f"a2rl/code_execution/{path}.py") for path in ("pool", "tester", "cell")),
        ("alpacaeval", "tasks/alpacaeval/annotator.py"),
        ("alpacaeval", "tasks/alpacaeval/rule.py"),
        ("alpacaeval", "a2rl/judge/local.py"),
        ("alpacaeval", "a2rl/judge/annotators/alpaca_eval_gpt5_2_fn/configs.yaml"),
        ("deepsearchqa", "tasks/deepsearchqa/annotator.py"),
        ("deepsearchqa", "tasks/deepsearchqa/research/match.py"),
    ],
)  # fmt: skip
def test_a_grade_depends_on_the_code_that_grades(task: str, path: str) -> None:
    assert path in code_of(task).files


@pytest.mark.parametrize("task", TASKS)
def test_a_grade_does_not_depend_on_what_does_not_grade(task: str) -> None:
    parts = {"/".join(Path(path).parts[:2]) for path in code_of(task).files}
    assert not parts & {
        "a2rl/cli",
        "a2rl/results",
        "a2rl/execution",
        "a2rl/sandbox",
        "a2rl/agent_systems",
        "a2rl/config",
    }
    others = {f"tasks/{each}" for each in TASKS} - {f"tasks/{task}"}
    assert not parts & others


LOADS = """
import importlib, json, os, sys
import a2rl.grading.job, a2rl.sampling.transformers_backend, a2rl.sampling.vllm_backend

for task in sys.argv[1:]:
    if os.fork() == 0:  # it has loaded what all share, and nothing of the tasks before
        for module in ("grade", "task"):
            importlib.import_module(f"tasks.{task}.{module}")
        ours = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] in ("a2rl", "tasks")]
        print(json.dumps({task: ours}), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """The files of this project that grading of each task loads."""
    command = [sys.executable, "-c", LOADS, *TASKS]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return {task: files for line in done.stdout.splitlines() for task, files in json.loads(line).items()}


@pytest.mark.heavy
@pytest.mark.parametrize("task", TASKS)
def test_all_our_code_that_grading_loads_is_found(task: str, loaded: dict[str, list[str]]) -> None:
    assert {str(Path(file).relative_to(REPOSITORY)) for file in loaded[task]} <= set(code_of(task).files)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code that may be changed."""
    for package in dependencies.OURS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, tmp_path / "copy" / package, ignore=ignored)
    monkeypatch.setattr(dependencies, "_roots", lambda _: [tmp_path / "copy"])
    return tmp_path / "copy"


def test_changed_code_counts_but_comments_and_docstrings_do_not(copied: Path) -> None:
    files = code_of.__wrapped__("humaneval").files
    assert files == code_of("humaneval").files
    pool = copied / "a2rl/code_execution/pool.py"
    text = pool.read_text()
    pool.write_text('"""Another docstring."""\n# a comment\n' + text.partition('"""\n')[2])
    assert code_of.__wrapped__("humaneval").files == files
    pool.write_text(text.replace("MAX_TESTERS = 16", "MAX_TESTERS = 17"))
    assert {path for path, digest in code_of.__wrapped__("humaneval").files.items() if files[path] != digest} == {
        "a2rl/code_execution/pool.py"
    }


def test_a_newly_imported_module_counts_with_its_imports(copied: Path) -> None:
    before = code_of.__wrapped__("gsm8k").files.keys()
    (copied / "a2rl/scoring/new.py").write_text("def f():\n    from a2rl.scoring import newer\n    return newer\n")
    (copied / "a2rl/scoring/newer.py").write_text("X = 1\n")
    grade = copied / "tasks/gsm8k/grade.py"
    grade.write_text(grade.read_text() + "\nif TYPE_CHECKING:\n    import a2rl.cli.results\nNEW = 'a2rl.scoring.new'\n")
    assert code_of.__wrapped__("gsm8k").files.keys() - before == {"a2rl/scoring/new.py", "a2rl/scoring/newer.py"}


def test_dvc_asks_the_same_question(repository: Path) -> None:
    stages = yaml.safe_load((repository / "dvc.yaml").read_text())["stages"]
    assert stages["graders"]["always_changed"]
    assert not [
        each for each in stages["baseline"]["deps"] if each.endswith(".py") or each.startswith(("a2rl", "tasks"))
    ]
    assert "baselines/graders/${item.task}.json" in stages["baseline"]["deps"]


@pytest.mark.parametrize("task", TASKS)
def test_the_baselines_of_git_are_of_the_code_that_grades(task: str) -> None:
    """Otherwise every run grades the base model anew, which no score shows."""
    stored = read_model(REPOSITORY / "baselines" / "mini" / task / "key.json", BaselineKey).depends_on
    code = digest_of(code_of(task).files)
    assert stored["grader"] == code, "`dvc repro` in a clean clone makes them anew: key.json, score.json and dvc.lock"
