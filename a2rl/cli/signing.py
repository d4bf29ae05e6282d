"""`a2rl signer`: the daemon that signs the heads of ledgers."""

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer


def signer(
    key: Annotated[Path, typer.Option(help="Private key; it is made if it does not exist, with its .pub beside it.")],
    socket: Annotated[Path, typer.Option(help="Unix socket on which pipelines ask for signatures.")],
    user: Annotated[
        list[str] | None, typer.Option(help="User who may ask, besides the one that runs this; may be repeated.")
    ] = None,
) -> None:
    """Sign the heads of ledgers for pipelines that run as another user; a rewritten history is never signed.

    It remembers in `<key>.history.db` what it has signed for each run. See docs/audit.md.

    Example: `a2rl signer --key /var/lib/a2rl-signer/key --socket /run/a2rl-signer/socket --user alice`
    """
    from a2rl.anchor.daemon import SignerDaemon, user_ids
    from a2rl.anchor.keys import SigningKey, public_path
    from a2rl.anchor.signer import LocalSigner
    from a2rl.cli.console import out
    from a2rl.core.event_log import EventLog

    if not key.exists():
        SigningKey.make(key)
    local = LocalSigner(key)
    log = EventLog(key.with_name(key.name + ".log.jsonl"))
    daemon = SignerDaemon(socket, local, user_ids(user or []), log)

    def stop(number: int, frame: object) -> None:
        threading.Thread(target=daemon.shutdown).start()  # it waits for the loop, which this thread runs

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    out.print(f"key {local.key_id[:16]}, public part in {public_path(key)}", soft_wrap=True, markup=False)
    out.print(f"signing on {socket}", soft_wrap=True, markup=False)
    sys.stdout.flush()
    try:
        daemon.serve_forever(poll_interval=0.2)
    finally:
        daemon.server_close()
