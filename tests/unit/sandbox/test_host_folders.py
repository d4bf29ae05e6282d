"""Tests which folders of this machine a user can let an agent read, and which are refused with the reason."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.sandbox.policy import require_readable


@pytest.fixture
def host(settings: Settings, tmp_path: Path) -> Settings:
    """A machine with a home and a checkout in folders of their own."""
    (tmp_path / "homes" / "user").mkdir(parents=True)
    return replace(settings, environ={**settings.environ, "HOME": str(tmp_path / "homes" / "user")})


def make(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def home(host: Settings) -> Path:
    return Path(host.environ["HOME"])


ALLOWED: dict[str, Callable[[Settings], Path]] = {
    "a folder of its own": lambda host: make(host.root.parent / "library"),
    "a folder in the home": lambda host: make(home(host) / "models"),
    "the hub's cache of models": lambda host: make(home(host) / ".cache/huggingface/hub"),
    "the checkout's models": lambda host: make(host.models),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_a_harmless_folder_may_be_read(case: str, host: Settings) -> None:
    folder = ALLOWED[case](host)
    assert require_readable(folder, host, ["openai/gsm8k"]) == folder.resolve()


def linked(host: Settings) -> Path:
    (host.root.parent / "link").symlink_to(make(host.runs))
    return host.root.parent / "link"


def with_token(host: Settings) -> Path:
    (make(host.root.parent / "hf") / "token").write_text("hf_x")
    return host.root.parent / "hf"


def another_checkout(host: Settings) -> Path:
    other = make(host.root.parent / "other")
    (other / "params.yaml").touch()
    make(other / "stages")
    return make(other / "data" / "full" / "gsm8k")


def holding_eval_data(host: Settings) -> Path:
    make(host.root.parent / "cache/hub/datasets--openai--gsm8k/snapshots")
    return host.root.parent / "cache"


def runs_on_another_disk(host: Settings) -> Path:
    disk = make(host.root.parent / "disk/runs")
    host.runs.rmdir() if host.runs.is_dir() else None
    (host.root / "runs").symlink_to(disk)
    return disk.parent


def store(host: Settings) -> Path:
    folder = make(host.root.parent / "store")
    host.environ["A2RL_STORE"] = f"file://{folder}"
    return make(folder / "run-1")


REFUSED: dict[str, tuple[Callable[[Settings], Path], str]] = {
    "everything": (lambda host: Path("/"), "files of many programs"),
    "the folder for temporary files": (lambda host: Path("/tmp"), "files of many programs"),
    "the system's settings": (lambda host: Path("/etc/ssl"), "part of the system"),
    "processes": (lambda host: Path("/proc/1"), "part of the system"),
    "the home of nobody": (lambda host: Path("~nobody-here/models"), "not an absolute path"),
    "a relative path": (lambda host: Path("models"), "not an absolute path"),
    "what does not exist": (lambda host: host.root / "nothing", "no such folder"),
    "the home": (home, "contains this checkout or your home"),
    "the folder above the home": (lambda host: home(host).parent, "contains this checkout or your home"),
    "keys in the home": (lambda host: make(home(host) / ".ssh"), "keep keys"),
    "the folder above keys": (lambda host: make(home(host) / ".local/share/keyrings").parent, "keep keys"),
    "the hub's folder with its key": (with_token, "hub's key"),
    "the checkout": (lambda host: host.root, "contains this checkout"),
    "hidden data": (lambda host: make(host.data("gsm8k", "full") / "hidden"), "hidden data and runs"),
    "the data above it": (lambda host: make(host.root / "data"), "hidden data and runs"),
    "runs": (lambda host: make(host.runs / "a"), "hidden data and runs"),
    "a link to runs": (linked, "hidden data and runs"),
    "runs on another disk": (runs_on_another_disk, "hidden data or runs"),
    "a run in the store": (store, "hidden data or runs"),
    "the cache of DVC": (lambda host: make(host.root / ".dvc/cache"), "hidden data and runs"),
    "another checkout": (another_checkout, "hidden data and runs"),
    "a cache with eval data": (holding_eval_data, "datasets--openai--gsm8k: name single folders of models"),
    "eval data itself": (
        lambda host: make(host.root.parent / "datasets--openai--gsm8k/snapshots"), "contains the eval data",
    ),
    "the run's own source": (lambda host: make(host.root.parent / "mirror/gsm8k"), "contains the eval data"),
    "what contains the source": (lambda host: make(host.root.parent / "mirror"), "contains the eval data"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_sandbox_hides_is_refused_with_the_reason(case: str, host: Settings) -> None:
    folder, says = REFUSED[case]
    with pytest.raises(UsageError, match=says) as caught:
        require_readable(folder(host), host, ["openai/gsm8k"], host.root.parent / "mirror/gsm8k")
    assert "\n" not in str(caught.value)
