"""Host folders that a user lets an agent read, such as a cache of models: which of them are safe to give.

    require_readable(Path("/data/models"), settings, eval_data=("openai/gsm8k",), source=None)

Refused are folders from which an agent could learn what the sandbox hides: eval data, runs, keys, other checkouts.
"""

from collections.abc import Iterable
from pathlib import Path

from a2rl.core.errors import UsageError
from a2rl.core.settings import ROOT_MARK, Settings
from a2rl.sandbox.policy import contains_private_data

SYSTEM = ("/etc", "/proc", "/sys", "/dev", "/run", "/boot")
"""Neither these folders nor anything in them."""
SHARED = ("/", "/home", "/root", "/tmp", "/var", "/var/tmp", "/var/lib", "/var/run", "/mnt", "/media", "/srv")
"""Not as a whole: they hold the files of many programs and users."""
OPEN_IN_CHECKOUT = ("models", ".venv", ".venv-agent", ".venv-vllm", ".agents")
"""What an agent may read in a checkout."""
KEYS = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config", ".netrc", ".git-credentials", ".pypirc",
    ".npmrc", ".local/share/keyrings", ".cache/huggingface/token", ".cache/huggingface/stored_tokens",
)  # fmt: skip
"""Places below a home where programs keep keys."""
TOKENS = ("token", "stored_tokens")
"""Files with keys in the folder that is HF_HOME."""


def require_readable(
    folder: Path, settings: Settings, eval_data: Iterable[str] = (), source: Path | None = None, name: str = "read"
) -> Path:
    """Checks a folder or file that an agent is to read; returns it with all links resolved.

    Args:
        folder: The path that the user gave.
        settings: The settings of this checkout.
        eval_data: The ids of the data sets on the hub that contain eval items.
        source: The local copy of the data that this run is given, which contains eval items.
        name: The setting that names the folder, for messages.

    Raises:
        UsageError: The agent must not read it; the message says why, and what to give instead.
    """
    path = folder.expanduser()
    if not path.is_absolute():
        raise UsageError(f"{name} {str(folder)!r} is not an absolute path")
    if not path.exists():
        raise UsageError(f"{name} {folder}: there is no such folder or file on this machine")
    path = path.resolve()
    if problem := _problem(path, settings, eval_data, source):
        raise UsageError(f"{name} {folder}: an agent may not read this, because {problem}")
    return path


def _problem(path: Path, settings: Settings, eval_data: Iterable[str], source: Path | None) -> str:
    """Returns why an agent must not read a path, or an empty text."""
    home = Path(settings.environ.get("HOME") or "/root").resolve()
    checkout = _checkout_of(path)
    is_open = checkout is None or any(path.is_relative_to(checkout / name) for name in OPEN_IN_CHECKOUT)
    data = _eval_data_in(path, eval_data)
    reasons = (
        (str(path) in SHARED, "it holds the files of many programs: name single folders in it"),
        (
            any(path.is_relative_to(place) for place in SYSTEM),
            "it is a part of the system with other programs' sockets",
        ),
        (contains_private_data(path, settings), "it contains this checkout or your home: name single folders in it"),
        (any(_overlap(path, home / name) for name in KEYS), "programs keep keys there: name a folder without keys"),
        (
            path.is_dir() and any((path / name).is_file() for name in TOKENS),
            "it contains the hub's key (a file `token`): name its folder `hub`, or single models in it",
        ),
        (not is_open, f"it is in the checkout {checkout}, with hidden data and runs; only models/ there may be read"),
        (
            source is not None and _overlap(path, source.expanduser().resolve()),
            f"it contains the eval data in {source}",
        ),
        (data is not None, f"it contains the eval data in {data}: name single folders of models instead"),
    )
    return next((why for holds, why in reasons if holds), "")


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _checkout_of(path: Path) -> Path | None:
    """Returns the checkout of a2rl, this one or another, that contains the path."""
    places = (path, *path.parents)
    return next((place for place in places if (place / ROOT_MARK).is_file() and (place / "stages").is_dir()), None)


def _eval_data_in(path: Path, eval_data: Iterable[str]) -> Path | None:
    """Returns the folder of a data set with eval items in a cache of the hub, which may be the path itself."""
    names = {f"datasets--{repo_id.replace('/', '--')}" for repo_id in eval_data}
    inside = next((place for place in (path, *path.parents) if place.name in names), None)
    if inside is not None or not path.is_dir():
        return inside
    return next((path / place for top in ("", "hub", "huggingface/hub") for name in sorted(names)
                 if (path / (place := str(Path(top, name)))).exists()), None)  # fmt: skip
