"""Which runs were made in this checkout: no other run is continued unless the user says so.

The settings of a run say to which URL keys are sent, what its agent may read and whether it is confined. So the
directory of a run that somebody else made can be read, but nothing is started from it. Digests of the settings are kept
beside `runs/`, so that no directory that was sent brings its own.

    run = create_run(spec, settings)
    require_made_here([run], settings)        # raises UsageError for another run, unless `trust` was called
"""

import os
from collections.abc import Iterable

from a2rl.core.errors import UsageError
from a2rl.core.files import file_digest, machine_failure
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.spec import RunSpec


def create_run(spec: RunSpec, settings: Settings) -> RunDir:
    """Creates the directory of a new run of this checkout.

    Raises:
        InfrastructureError: A file cannot be written.
    """
    run = RunDir.create(settings.runs, spec)
    trust(run, settings)
    return run


def trust(run: RunDir, settings: Settings) -> None:
    """Remembers that the user wants a run with these settings.

    Raises:
        InfrastructureError: The file cannot be written.
    """
    try:
        file = os.open(settings.trusted_runs, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, f"{file_digest(run.root / 'spec.json')}\n".encode())  # one call: others append as well
        finally:
            os.close(file)
    except OSError as error:
        raise machine_failure(f"write {settings.trusted_runs}", error) from error


def require_made_here(runs: Iterable[RunDir], settings: Settings) -> None:
    """Checks that runs were made in this checkout, or that the user trusts their settings.

    Raises:
        UsageError: One of them was made elsewhere.
    """
    known = set(settings.trusted_runs.read_text().split()) if settings.trusted_runs.exists() else set()
    for run in runs:
        spec = run.load_spec()
        if file_digest(run.root / "spec.json") not in known:
            raise UsageError(
                f"run {run.id} was not made in this checkout, and its settings are not necessarily yours: agent "
                f"{spec.agent}, URL of its LLM {spec.base_url or 'that of the agent'}, sandbox {spec.sandbox}. Read "
                f"{run.root / 'spec.json'}; if you agree to all of it, `a2rl resume --trust {run.id}`"
            )
