"""Tests the signatures of ledgers: who signs them, what a signer refuses, and what a reader notices."""

import json
import resource
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from a2rl.anchor.signatures import (
    FILE,
    LATE_S,
    SKEW_S,
    Head,
    HeadSignature,
    SigningKey,
    add_signature,
    check_signatures,
    load_public_key,
    read_signatures,
)
from a2rl.anchor.signing import Signer, head_of, sign_heads
from a2rl.core.errors import InfrastructureError, IntegrityError, UsageError
from a2rl.core.files import canonical_json, digest_of
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, RunInterrupted
from a2rl.run.ledger import GENESIS
from a2rl.run.names import Stored, mark_stored
from tests.signing_key import make_key, public_path


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    make_key(tmp_path / "keys" / "key")
    return Signer(tmp_path / "keys" / "key")


def rewrite(run: RunDir, edit: Callable[[str, float], tuple[str, float]], keep: int | None = None) -> None:
    """Rewrites the ledger with a valid chain, in which the kind and the time of each event are edited."""
    rows = run.ledger.rows()[:keep]
    with closing(sqlite3.connect(run.ledger.path)) as database:
        database.execute("DROP TRIGGER no_delete")
        database.execute("DELETE FROM events")
        previous = GENESIS
        for row in rows:
            body, at = edit(row.body, row.at)
            entry_hash = digest_of([row.seq, at, row.kind, body, previous])
            database.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", (row.seq, at, row.kind, body, previous, entry_hash)
            )
            previous = entry_hash
        database.commit()


def other_body(body: str, at: float) -> tuple[str, float]:
    return canonical_json({**json.loads(body)}).replace('"attempt":1', '"attempt":2'), at


def test_each_head_is_signed_once_and_its_signature_is_good(run: RunDir, signer: Signer) -> None:
    assert sign_heads(run, signer) == head_of(run)
    sign_heads(run, signer)
    run.ledger.append(RunInterrupted(stage="execute"))
    sign_heads(run, signer)
    assert [each.seq for each in read_signatures(run.root)] == [3, 4]
    assert "2 signatures" in check_signatures(run, {signer.key_id})
    assert signer.history.known(run.id, run.ledger.rows()) == head_of(run)


def test_only_what_is_stored_is_signed_or_published(run: RunDir, signer: Signer) -> None:
    """Another machine that takes the run over would have another ledger beyond that."""
    mark_stored(run, Stored(seq=0, epoch=1, manifest=""))
    assert head_of(run) is sign_heads(run, signer) is None
    mark_stored(run, Stored(seq=2, epoch=1, manifest=""))
    second = run.ledger.rows()[1]
    assert head_of(run) == sign_heads(run, signer) == Head(seq=2, hash=second.hash)


def test_a_rewritten_history_is_not_signed_again(run: RunDir, signer: Signer) -> None:
    sign_heads(run, signer)
    rewrite(run, other_body)
    with pytest.raises(IntegrityError, match="another history"):
        sign_heads(run, signer)
    (run.root / FILE).unlink()
    with pytest.raises(IntegrityError, match="another history"):
        sign_heads(run, signer)
    with pytest.raises(IntegrityError, match="does not continue"):
        signer.sign(run.id, run.ledger.rows())
    with pytest.raises(IntegrityError, match="not signed"):
        check_signatures(run, {signer.key_id})


def test_the_signers_memory_finds_a_ledger_that_was_cut_off(run: RunDir, signer: Signer) -> None:
    """Its signatures were cut off with it."""
    sign_heads(run, signer)
    run.ledger.append(RunInterrupted(stage="execute"))
    sign_heads(run, signer)
    rewrite(run, lambda body, at: (body, at), keep=3)
    (run.root / FILE).write_text((run.root / FILE).read_text().splitlines()[0] + "\n")
    check_signatures(run, {signer.key_id})
    with pytest.raises(IntegrityError, match="another history"):
        signer.history.known(run.id, run.ledger.rows())


def test_signatures_of_another_run_or_another_key_do_not_count(
    new_run: Callable[..., RunDir], signer: Signer, tmp_path: Path
) -> None:
    run, other = new_run(), new_run(run_id="gsm8k-test-2")
    sign_heads(run, signer)
    sign_heads(other, signer)
    ours, theirs = run.root / FILE, other.root / FILE
    kept = ours.read_text()
    ours.write_text(theirs.read_text())
    with pytest.raises(IntegrityError, match="not a signature of this run"):
        check_signatures(run, {signer.key_id})
    make_key(tmp_path / "mine")
    ours.unlink()
    sign_heads(run, Signer(tmp_path / "mine"))
    with pytest.raises(IntegrityError, match="not trusted"):
        check_signatures(run, {signer.key_id})
    ours.write_text(kept)
    check_signatures(run, {signer.key_id})


def test_what_nobody_signed_while_it_went_on_stays_unsigned(run: RunDir, signer: Signer) -> None:
    rewrite(run, lambda body, at: (body, at - LATE_S - 60))
    run.ledger.append(RunInterrupted(stage="execute"))  # it is resumed when there is a key
    assert sign_heads(run, signer) is None
    assert not (run.root / FILE).exists()
    assert check_signatures(run, ()) == ""


def test_a_late_signature_does_not_prove_times_of_its_entries(run: RunDir, signer: Signer) -> None:
    rewrite(run, lambda body, at: (body, at - LATE_S - 60))
    add_signature(run.root, signer.sign(run.id, run.ledger.rows()))
    with pytest.raises(IntegrityError, match="nothing proves that time"):
        check_signatures(run, {signer.key_id})


def test_no_entry_can_be_older_than_an_earlier_signature(run: RunDir, tmp_path: Path) -> None:
    """An entry cannot claim a time before the signature of an earlier entry."""
    key, rows = make_key(tmp_path / "key"), run.ledger.rows()
    for row, late_s in zip(rows, (500.0, 501.0, 502.0), strict=True):
        head = Head(seq=row.seq, hash=row.hash)
        add_signature(run.root, HeadSignature.make(run.id, head, row.at + late_s, key))
    with pytest.raises(IntegrityError, match="before entry 1 was signed"):
        check_signatures(run, {key.id})


@pytest.mark.parametrize(("back_s", "is_sound"), [(5.0, True), (SKEW_S + 5.0, False)])
def test_a_clock_that_is_set_back_a_little_breaks_nothing(
    run: RunDir, signer: Signer, monkeypatch: pytest.MonkeyPatch, back_s: float, is_sound: bool
) -> None:
    sign_heads(run, signer)
    now = time.time() - back_s
    monkeypatch.setattr(time, "time", lambda: now)
    run.ledger.append(RunInterrupted(stage="execute"))
    sign_heads(run, signer)
    with nullcontext() if is_sound else pytest.raises(IntegrityError, match="entry 4 is older than that of entry 3"):
        check_signatures(run, {signer.key_id})


def test_old_entries_that_nobody_signed_are_found(run: RunDir, signer: Signer) -> None:
    sign_heads(run, signer)
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=1.0, reason="finished", exit_code=0))
    check_signatures(run, {signer.key_id})
    for later_s, advice in ((600, "`a2rl report` signs the rest"), (LATE_S + 1, "it is too late")):
        with pytest.raises(IntegrityError, match=f"entries 4 to 4 are not signed: {advice}"):
            check_signatures(run, {signer.key_id}, now=run.ledger.rows()[-1].at + later_s)
    for more in ({"now": run.ledger.rows()[-1].at - 600}, {"pending_s": 0.0}):  # it comes from the future, or others
        with pytest.raises(IntegrityError, match="entries 4 to 4 are not signed"):
            check_signatures(run, {signer.key_id}, **more)


def test_half_a_line_of_a_killed_process_is_replaced(run: RunDir, signer: Signer) -> None:
    sign_heads(run, signer)
    with (run.root / FILE).open("a") as file:
        file.write('{"seq": 4, "ha')
    with pytest.raises(IntegrityError, match="line 2"):
        read_signatures(run.root)
    run.ledger.append(RunInterrupted(stage="execute"))
    assert sign_heads(run, signer) == head_of(run)
    assert [each.seq for each in read_signatures(run.root)] == [3, 4]


def test_a_signature_that_a_full_disk_cuts_leaves_nothing(run: RunDir, signer: Signer) -> None:
    sign_heads(run, signer)
    before = (run.root / FILE).read_bytes()
    run.ledger.append(RunInterrupted(stage="execute"))
    signature = signer.sign(run.id, run.ledger.rows()[3:])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(InfrastructureError, match="No space left"):
            add_signature(run.root, signature)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (run.root / FILE).read_bytes() == before


def test_a_key_is_private_and_its_public_part_can_be_given_away(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert load_public_key(public_path(tmp_path / "key")) == key.id
    with pytest.raises(UsageError, match="not a public key"):
        load_public_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        SigningKey.load(tmp_path / "key")
