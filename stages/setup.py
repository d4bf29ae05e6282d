"""Stage `setup`: resolve what the run needs, build the workspace, open the ledger."""

import time
from contextlib import suppress
from pathlib import Path

from a2rl.catalog import find_agent, load_task
from a2rl.data import about, ensure_data, hidden_digest, reading, require_complete
from a2rl.events import RunOpened
from a2rl.files import digest_of
from a2rl.inputs import place_in
from a2rl.isolation.decide import decide
from a2rl.models import model_digest, resolve_model
from a2rl.records import SetupRecord
from a2rl.run import RunDir
from a2rl.settings import Settings
from a2rl.workspace import build_workspace


def setup(run: RunDir, settings: Settings) -> SetupRecord:
    """Makes everything ready that the later stages use.

    Raises:
        UsageError: the spec names something that is not there.
        InfrastructureError: the hub or the disk failed.
    """
    if (done := run.read("setup", SetupRecord)) is not None:
        return done
    started, spec = time.monotonic(), run.spec
    load_task(spec.task, settings.root)
    find_agent(spec.agent, settings.root)
    base_model = resolve_model(spec.model, settings)
    data = ensure_data(spec.task, spec.variant, Path(spec.source) if spec.source else None, settings)
    with reading(data):
        require_complete(data)
        with suppress(OSError):  # another user's, or read-only: who may read it is decided there
            (data / "hidden").chmod(0o700)
        record = SetupRecord(
            seconds=0,
            base_model=place_in(settings.root, base_model),
            model_digest=model_digest(base_model),
            hidden=place_in(settings.root, data / "hidden"),
            data_digest=hidden_digest(data),
            data_about=about(data),
            sandbox=decide(spec.sandbox, settings),
        )
        build_workspace(run, base_model, data / "visible", settings.root / "tasks" / spec.task / "description.md")
    run.clock.create(spec.budget_s, refunds=spec.protocol == "strict")
    opened = RunOpened(
        spec_digest=digest_of(spec.model_dump(mode="json")),
        model_digest=record.model_digest,
        data_digest=record.data_digest,
    )
    run.ledger.append_unless(opened, lambda _: True)
    return run.write("setup", record.model_copy(update={"seconds": time.monotonic() - started}))
