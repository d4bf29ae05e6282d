"""Tests what `make` and its scripts say and do on a machine that is not as expected."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

UV = """#!/bin/sh
site=$(ls -td .venv-*/lib/python*/site-packages | head -n 1)
case "$*" in
*flash-attn*) echo "error: no kernel image"; mkdir $site/flash_attn; exit 1 ;;
*deepspeed*) touch $site/deepspeed.py ;;
*--requirement*)
    for each in torch transformers trl peft accelerate datasets vllm reasoning_gym inspect_evals; do
        touch $site/$each.py
    done ;;
esac
"""
"""A fake of uv, which installs empty modules."""
UV_THAT_TELLS = """#!/bin/sh
case "$*" in
*--dry-run*) test -e index-of-cpu-builds ;;
*) echo "torch for ${UV_TORCH_BACKEND:-any}" ;;
esac
"""
"""It says what it would install. Whether the index of CPU builds can be reached depends on a file."""
UV_THAT_FAILS = """#!/bin/sh
site=$(echo .venv-*/lib/python*/site-packages)
echo 'from pathlib import Path; Path(__file__).with_name("vllm.py").touch()' >$site/pip.py
exit 1
"""
"""It leaves a fake of pip."""


@pytest.fixture
def folder(tmp_path: Path, repository: Path) -> Path:
    shutil.copy(repository / "Makefile", tmp_path)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    return tmp_path


def make(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["make", *arguments], cwd=folder, env={"PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.heavy
def test_an_environment_without_pip_such_as_one_of_uv_gets_it(folder: Path) -> None:
    venv.create(folder / ".venv", with_pip=False)
    done = make(folder, "setup", f"PYTHON={sys.executable}", "PIP=true")
    assert done.returncode == 0, done.stderr
    subprocess.run([folder / ".venv/bin/python", "-m", "pip", "--version"], check=True, capture_output=True)


def test_an_environment_of_another_python_is_refused_first(folder: Path) -> None:
    """Nothing is installed."""
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").symlink_to(shutil.which("false") or "/bin/false")
    refused = make(folder, "setup", f"PYTHON={sys.executable}", "PIP=false")
    assert refused.returncode == 2
    assert ".venv has no Python 3.11: remove it" in refused.stdout


def test_a_used_port_of_the_mlflow_page_is_named_with_a_remedy(folder: Path) -> None:
    (folder / ".venv").mkdir()
    (folder / ".venv/.installed").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = make(folder, "ui", f"PORT={port}")
    assert refused.returncode == 2
    assert refused.stdout == f"port {port} is in use: name another one with make ui PORT=...\n"


def test_clean_keeps_runs_paid_answers_and_models(folder: Path) -> None:
    kept = (
        "runs/a", "data/judgements.db", "data/searches.db", "data/full/gsm8k", "data/mini/gsm8k", "models/mine",
        "models/tiny", "mlruns/mlflow.db", "baselines/cache", "reports/a", ".venv", ".prefect",
    )  # fmt: skip
    for name in (*kept, "data/pretraining", ".pytest_cache", "dist"):
        (folder / name).mkdir(parents=True)
    assert make(folder, "clean").returncode == 0
    assert [name for name in kept if not (folder / name).is_dir()] == []
    assert not [name for name in ("data/pretraining", ".pytest_cache", "dist") if (folder / name).exists()]


def test_without_a_prefect_server_deploy_says_how_to_start_one(folder: Path) -> None:
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/.installed").touch()
    (folder / ".venv/bin/prefect").symlink_to(shutil.which("false") or "/bin/false")
    refused = make(folder, "deploy")
    assert refused.returncode == 2
    assert "start one in another terminal with: prefect server start" in refused.stdout


def test_a_service_is_not_started_on_a_port_that_is_in_use(tmp_path: Path, repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run(
            [repository / "scripts/services.sh", "start", "redis"],
            env={"PATH": os.environ["PATH"], "A2RL_SERVICES": str(tmp_path), "A2RL_SERVICES_PORT": str(port - 1)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert refused.returncode == 1
    assert f"port {port} of redis is in use: A2RL_SERVICES_PORT names" in refused.stdout + refused.stderr


def test_a_process_with_the_number_of_an_old_service_lives_on(tmp_path: Path, repository: Path) -> None:
    """The machine was restarted while the service ran."""
    (tmp_path / "pid").mkdir()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        (tmp_path / "pid" / "redis").write_text(f"{other.pid}\n")
        environ = {"PATH": os.environ["PATH"], "A2RL_SERVICES": str(tmp_path)}
        subprocess.run([repository / "scripts/services.sh", "stop", "redis"], env=environ, check=True)
        assert other.poll() is None
        other.kill()


def test_prefect_ends_with_its_background_services(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "pid").mkdir()
    with ThreadPoolExecutor(2) as waiting:
        statuses = []
        for name in ("prefect", "prefect-services"):
            service = subprocess.Popen(["sleep", "30"], start_new_session=True)
            started = Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()[19]
            (tmp_path / "pid" / name).write_text(f"{service.pid}\n")
            (tmp_path / "pid" / f"{name}.start").write_text(f"{started}\n")
            statuses.append(waiting.submit(service.wait))
        environ = {"PATH": os.environ["PATH"], "A2RL_SERVICES": str(tmp_path)}
        subprocess.run([repository / "scripts/services.sh", "stop", "prefect"], env=environ, check=True)
    assert [status.result() for status in statuses] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["setup_environment.sh"], "agent, vllm or tasks"),
        (["setup_environment.sh", "vlm"], "agent, vllm or tasks"),
        (["services.sh", "start", "postgre"], "no service postgre: name some of postgres redis s3 prefect mlflow"),
        (["services.sh", "stop", "redis", "*"], "no service *: name some of"),
        (["services.sh", "restart"], "start, stop or env"),
    ],
)
def test_a_wrong_word_after_a_script_costs_one_line(
    tmp_path: Path, repository: Path, command: list[str], says: str
) -> None:
    shutil.copytree(repository / "scripts", tmp_path / "scripts")
    environ = {"PATH": os.environ["PATH"], "A2RL_SERVICES": str(tmp_path / "services")}
    refused = subprocess.run(
        [tmp_path / "scripts" / command[0], *command[1:]], env=environ, capture_output=True, text=True, check=False
    )
    [line] = (refused.stdout + refused.stderr).splitlines()
    assert (refused.returncode, says in line) == (2, True)


@pytest.fixture
def machine(tmp_path: Path, repository: Path) -> Path:
    """A checkout with the script that sets up environments, and fakes of programs in `bin`."""
    (tmp_path / "scripts").mkdir()
    for script in ("setup_environment.sh", "setup_packages.sh"):
        shutil.copy(repository / "scripts" / script, tmp_path / "scripts")
    for lock in repository.glob("requirements-*.lock"):
        shutil.copy(lock, tmp_path)
    write_program(tmp_path, "uv", UV)
    write_program(tmp_path, "python3.11", f'#!/bin/sh\nexec {sys.executable} "$@" --without-pip\n')
    return tmp_path


def write_program(machine: Path, name: str, text: str) -> None:
    (machine / "bin").mkdir(exist_ok=True)
    (machine / "bin" / name).write_text(text)
    (machine / "bin" / name).chmod(0o755)


def set_up(machine: Path, name: str, **more: str) -> str:
    environ = {"PATH": f"{machine / 'bin'}:/usr/bin:/bin", "CUDA_HOME": "/nowhere", **more}
    done = subprocess.run(
        [machine / "scripts/setup_environment.sh", name], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("compiler", [True, False])
def test_what_does_not_build_on_a_gpu_is_named_with_the_reason(machine: Path, compiler: bool) -> None:
    write_program(machine, "nvidia-smi", "#!/bin/sh\n")
    if compiler:
        write_program(machine, "nvcc", "#!/bin/sh\n")
    why = "error: no kernel image" if compiler else "there is no compiler for CUDA (nvcc) here"
    left_out = f"without flash-attn: {why}; .venv-agent/flash-attn.log says more\n"
    assert left_out in set_up(machine, "agent")
    assert left_out in set_up(machine, "agent")  # it is up to date, and says so again
    assert "no kernel image" in (machine / ".venv-agent/flash-attn.log").read_text()
    [site] = machine.glob(".venv-agent/lib/python*/site-packages")
    assert (site / "deepspeed.py").exists()
    assert not (site / "flash_attn").exists()


def test_without_a_gpu_the_environments_say_what_needs_one(machine: Path) -> None:
    assert "without vllm, deepspeed, flash-attn" in set_up(machine, "agent")
    assert "without" not in set_up(machine, "vllm")
    assert "without" not in set_up(machine, "tasks")
    assert (machine / ".venv-agent/left-out.txt").is_file()


@pytest.mark.parametrize(("gpu", "build"), [(True, "cpu"), (False, "cuda")])
def test_the_build_that_is_asked_for_is_installed(machine: Path, gpu: bool, build: str) -> None:
    if gpu:
        write_program(machine, "nvidia-smi", "#!/bin/sh\n")
    assert f"requirements-vllm-{build}.lock into" in set_up(machine, "vllm", A2RL_BUILD=build)


def test_messages_name_no_target_of_make_that_sets_up(repository: Path) -> None:
    """A project of an installed package has the scripts, but no Makefile."""
    modules = [*(repository / "a2rl").rglob("*.py")]
    assert modules
    assert [each for each in modules if "`make setup" in each.read_text()] == []


def test_where_uv_fails_pip_installs(machine: Path) -> None:
    write_program(machine, "uv", UV_THAT_FAILS)
    assert "uv failed; pip tries it" in set_up(machine, "vllm")
    assert list(machine.glob(".venv-vllm/lib/python*/site-packages/vllm.py"))


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("gpu", [True, False])
def test_without_a_gpu_the_small_build_of_torch_is_installed(machine: Path, reachable: bool, gpu: bool) -> None:
    write_program(machine, "uv", UV_THAT_TELLS)
    if reachable:
        (machine / "index-of-cpu-builds").touch()
    if gpu:
        write_program(machine, "nvidia-smi", "#!/bin/sh\n")
    path = f"{machine / 'bin'}:/usr/bin:/bin"
    command = [str(machine / "scripts/setup_packages.sh"), sys.prefix, "torch"]
    for given, expected in (
        (dict[str, str](), "cpu" if reachable and not gpu else "any"),
        ({"UV_TORCH_BACKEND": "cu130"}, "cu130"),
        ({"A2RL_BUILD": "cuda"}, "any"),
        ({"A2RL_BUILD": "cpu"}, "cpu" if reachable else "any"),
    ):
        done = subprocess.run(
            command, cwd=machine, env={"PATH": path} | given, capture_output=True, text=True, check=True
        )
        assert done.stdout == f"torch for {expected}\n"
