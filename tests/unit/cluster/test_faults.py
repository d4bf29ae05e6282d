"""A call of the store or of the claims fails, loses its answer, or is the last one before the machine dies: each in
turn, in one checkout and in two. Then the run is resumed."""

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import pytest

from a2rl.cluster import claims, holding, replica
from a2rl.cluster.claims import ClaimLostError, Claims, Lease
from a2rl.cluster.copies import ObjectStore, write_spec
from a2rl.cluster.file_claims import FileClaims
from a2rl.cluster.holding import Cluster, held, new_run
from a2rl.cluster.postgres_claims import PostgresClaims
from a2rl.cluster.replica import Replica
from a2rl.cluster.restore import bring_up_to_date
from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings
from a2rl.results.manifest import changed_files, close_run, manifest_of
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
from a2rl.run.failure import failed
from a2rl.run.names import stored_entries
from a2rl.run.records import ReportRecord
from a2rl.run.spec import RunSpec
from a2rl.validity.record import decide
from tests.run_maker import spec, wait_for
from tests.services import running

Kind = Literal["fails", "loses its answer", "dies before", "dies after"]
KINDS: tuple[Kind, ...] = ("fails", "loses its answer", "dies before", "dies after")
DEATHS: tuple[Kind, ...] = ("dies before", "dies after")
PUSHES = 1
"""How often a session copies a run before its last copy."""


class KilledError(BaseException):
    """The machine is dead: kill -9, or a power cut."""


class Fault(NamedTuple):
    """What happens at which call: its number from 1, or its name for the first one so called."""

    kind: Kind
    at: int | str


class Machine:
    """One process at work. Its calls of the store and the claims are counted, and one of them has the fault."""

    def __init__(self, place: Settings, store: ObjectStore, claims: Claims, fault: Fault | None) -> None:
        self.place, self._claims, self._fault = place, claims, fault
        self.cluster = Cluster(cast(ObjectStore, _Calls(store, self)), cast(Claims, _Calls(claims, self)))
        self.calls, self.is_dead = 0, False

    def call(self, name: str, work: Callable[..., Any], *values: Any) -> Any:
        self.calls += 1
        if self.is_dead:
            raise KilledError
        if self._fault is None or self._fault.at not in {self.calls, name}:
            return work(*values)
        kind, self._fault = self._fault.kind, None
        if kind in {"loses its answer", "dies after"}:
            work(*values)
        if kind in DEATHS:
            self.is_dead = True
            raise KilledError
        raise InfrastructureError("the connection broke")

    def end(self, run_id: str) -> None:
        """The kernel closes what the process had open; a lease lapses."""
        if isinstance(self._claims, FileClaims):
            with suppress(KeyError):
                self._claims._locks.pop(run_id).release()
        else:
            assert isinstance(self._claims, PostgresClaims)
            lapse = "UPDATE a2rl_runs SET until = '-infinity' WHERE run_id = %s"
            self._claims._patiently(lambda database: database.execute(lapse, [run_id]))


class _Calls:
    def __init__(self, target: object, machine: Machine) -> None:
        self._target, self._machine = target, machine

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return (lambda *values: self._machine.call(name, found, *values)) if callable(found) else found


class Place(NamedTuple):
    """A checkout, and what its runs share with others."""

    settings: Settings
    store: ObjectStore
    connect: Callable[[], Claims]


@pytest.fixture(params=["files", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def places(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Place, Place]]:
    """Two checkouts with one store. Nothing is copied or renewed but when a test does it, and no retry waits."""
    for module in (claims, replica):
        monkeypatch.setattr(module, "TICK_S", 3600.0)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(holding, "Replica", Watched)
    store = ObjectStore(f"file://{tmp_path}/store")
    one, two = (Settings(tmp_path / name, {}) for name in ("one", "two"))
    if request.param == "files":
        folder = tmp_path / "store" / "claims"
        yield Place(one, store, lambda: FileClaims(folder)), Place(two, store, lambda: FileClaims(folder))
        return
    with running("postgres") as services:
        url = services.variables["A2RL_CLAIMS"]
        yield Place(one, store, lambda: PostgresClaims(url)), Place(two, store, lambda: PostgresClaims(url))


class Watched(Replica):
    """The replica of the session at work."""

    now: "Watched"

    def __enter__(self) -> "Watched":
        Watched.now = self
        super().__enter__()
        return self


class Session(NamedTuple):
    """How a session ended."""

    error: BaseException | None
    calls: int
    was_restored: bool
    """Whether the session began its work."""


def begin(place: Place, run_id: str) -> RunSpec:
    """Makes a run that is only in the store."""
    made = spec(run_id=run_id)
    write_spec(place.store, made)
    return made


def work(place: Place, made: RunSpec, names: Iterator[str], fault: Fault | None = None) -> Session:
    """Takes a run, appends entries and copies each one, until it has done so or its process has died."""
    machine = Machine(place.settings, place.store, place.connect(), fault)
    run, error, has_begun = RunDir(place.settings.runs / made.run_id), None, False
    try:
        with held(run, place.settings, cluster=machine.cluster) as tenure:
            has_begun = True
            for _ in range(PUSHES):
                append(run, next(names))
                with suppress(ClaimLostError) if tenure.is_lost else suppress(InfrastructureError):
                    Watched.now.push()
            append(run, next(names))
    except (KilledError, InfrastructureError) as caught:
        error = caught
    machine.end(made.run_id)
    return Session(error, machine.calls, has_begun)


def append(run: RunDir, name: str) -> None:
    if not run.clock.path.exists():
        run.clock.create(600.0, refunds=False)
    run.ledger.append(RunInterrupted(stage=name))
    note_of(run).write_text(name)


def note_of(run: RunDir, name: str = "note") -> Path:
    """Returns a file that is copied."""
    run.record_path(name).parent.mkdir(exist_ok=True)
    return run.record_path(name)


def entries(run: RunDir) -> list[str]:
    return [event.stage for event in run.ledger.events(RunInterrupted)]


def counted() -> tuple[Iterator[str], list[str]]:
    """Returns names for entries, and the list of those that were used."""
    used = list[str]()

    def names() -> Iterator[str]:
        for number in itertools.count():
            used.append(f"entry {number}")
            yield used[-1]

    return names(), used


def faults_of(place: Place) -> Iterator[Fault]:
    """Returns each kind of fault at each call of a session."""
    calls = work(place, begin(place, "gsm8k-noop-0"), counted()[0]).calls
    assert calls > 12
    return (Fault(kind, at) for at in range(1, calls + 1) for kind in KINDS)


SECOND = (None, *(Fault(kind, name) for kind in DEATHS for name in ("take", "commit")))


@pytest.mark.heavy
def test_what_a_checkout_has_done_outlives_an_older_copy(places: tuple[Place, Place]) -> None:
    here, elsewhere = places
    for number, (first, second) in enumerate(zip(faults_of(here), itertools.cycle(SECOND), strict=False)):
        made, (names, used) = begin(here, f"gsm8k-noop-1-{number}"), counted()
        run = RunDir(here.settings.runs / made.run_id)
        for fault in (first, second, None):
            session = work(here, made, names, fault)
            assert not isinstance(session.error, ClaimLostError), (first, second)
            assert entries(run) == used, (first, second)
        assert session.error is None
        assert not (run.root / ".replaced").exists(), (first, second)
        moved = RunDir(elsewhere.settings.runs / made.run_id)
        assert work(elsewhere, made, names).error is None
        assert entries(moved) == used
        assert note_of(moved).read_text() == used[-1]


@pytest.mark.heavy
def test_between_two_checkouts_what_was_safe_stays(
    places: tuple[Place, Place],
) -> None:
    """An owner that copied nothing replaces nothing."""
    here, elsewhere = places
    for number, (first, second) in enumerate(zip(faults_of(here), itertools.cycle(SECOND), strict=False)):
        made, (names, used) = begin(here, f"gsm8k-noop-2-{number}"), counted()
        run, moved = (RunDir(place.settings.runs / made.run_id) for place in places)
        work(here, made, names, first)
        stored = stored_entries(run) if (run.root / "stored.json").exists() else []
        safe = [used[entry.seq - 1] for entry in stored]
        before, mine = here.connect().row(made.run_id), list(used)
        between = work(elsewhere, made, names, second)
        after = here.connect().row(made.run_id)
        has_copied = before is None or after is None or after.manifest != before.manifest
        assert not between.was_restored or entries(moved)[: len(safe)] == safe, (first, second)
        work(here, made, names)
        assert entries(run)[: len(safe)] == safe, (first, second)
        assert has_copied or entries(run)[: len(mine)] == mine, (first, second)
        assert work(elsewhere, made, names).error is None
        assert entries(moved)[: -PUSHES - 1] == entries(run), (first, second)


def test_an_owner_whose_call_fails_or_loses_its_answer_goes_on(places: tuple[Place, Place]) -> None:
    here, _ = places
    for number, fault in enumerate(each for each in faults_of(here) if each.kind not in DEATHS):
        made, (names, used) = begin(here, f"gsm8k-noop-3-{number}"), counted()
        session = work(here, made, names, fault)
        row = here.connect().row(made.run_id)
        if session.was_restored and row is not None:
            assert row.seq == len(used) == PUSHES + 1, fault
            assert row.head == RunDir(here.settings.runs / made.run_id).ledger.rows()[-1].hash


class BreakingStore(ObjectStore):
    """A store that can be away."""

    is_away = False

    def write(self, key: str, content: bytes) -> None:
        if self.is_away:
            raise InfrastructureError("the store is away")
        super().write(key, content)


def test_a_run_is_done_only_once_its_end_is_in_the_store(
    places: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, the claim that `a2rl resume` asks for is granted."""
    here, _ = places
    monkeypatch.setattr(replica, "LAST_COPY_S", 0.0)
    made, store = begin(here, "gsm8k-noop-5"), BreakingStore(here.store._url)
    run, cluster = RunDir(here.settings.runs / made.run_id), Cluster(store, here.connect())

    def state() -> tuple[bool, str, bool]:
        row = cluster.claims.row(run.id)
        assert row is not None
        return row.done, row.outcome, row.seq == len(run.ledger.rows())

    with held(run, here.settings, cluster=cluster):
        run.write("grade", failed(run, "it was simulated"))
        decide(run, [], 0.0)
        run.write("report", ReportRecord(seconds=0, path=run.report))
    assert state() == (False, "interrupted", True)  # its ledger is not closed
    close_run(run)
    with pytest.raises(InfrastructureError, match=r"resume .* copies it"), held(run, here.settings, cluster=cluster):
        store.is_away = True
    done, outcome, is_whole = state()
    assert (done, outcome[:17], is_whole) == (False, "the store is away", False)
    store.is_away = False
    with held(run, here.settings, cluster=cluster):
        pass
    assert state() == (True, "failed", True)


def test_a_copy_that_fails_touches_no_file_of_the_manifest(
    places: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread goes on after the run was closed."""
    here, _ = places
    monkeypatch.setattr(replica, "TICK_S", 0.01)
    made = begin(here, "gsm8k-noop-4")
    run = RunDir(here.settings.runs / made.run_id)
    machine = Machine(here.settings, here.store, here.connect(), Fault("fails", "commit"))
    with held(run, here.settings, cluster=machine.cluster):
        manifest = manifest_of(run)
        append(run, "report")
        wait_for(lambda: machine._fault is None)
    note_of(run).unlink()
    assert changed_files(run, manifest) == []
    assert "the connection broke" in (run.logs / "aside.jsonl").read_text()


NOTES = ("x", "y", "z")


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_machine_past_its_lease_removes_nothing_newer(places: tuple[Place, Place], tmp_path: Path) -> None:
    """It slept; the new owner has written meanwhile."""
    here, elsewhere = places
    made, clock, rows = begin(here, "gsm8k-noop-4"), Clock(), counted()[0]
    run, moved = (RunDir(place.settings.runs / made.run_id) for place in places)

    class Sleeper(ObjectStore):
        def remove(self, key: str) -> None:
            super().remove(key)
            if "/blobs/" in key and not moved.root.exists():
                clock.now += 1000.0
                machine.end(run.id)
                for _ in range(2):
                    assert work(elsewhere, made, rows).error is None
                    for name in NOTES:
                        note_of(moved, name).write_text(f"a {name}")

    machine = Machine(here.settings, here.store, here.connect(), None)
    store, claims = Sleeper(here.store._url), machine._claims
    claims_lease = type("Short", (), {"lease_s": 120.0})()
    claim = claims.take(new_run(made), "sleeper")
    bring_up_to_date(run, here.store, claim)
    held_here = Lease(claims_lease, claim, lambda: None, lambda: None, now=clock)
    asleep = Replica(run, store, claims, claim, None, held_here)
    for text in ("a", "b"):
        for name in NOTES:
            note_of(run, name).write_text(f"{text} {name}")
        run.clock.create(600.0, refunds=False)
        asleep.push()
    assert moved.root.exists()
    with pytest.raises(ClaimLostError):
        asleep.push()
    assert work(Place(Settings(tmp_path / "three", {}), here.store, here.connect), made, rows).error is None


class FullDisk:
    """A file system on which only the beginning of a file finds room."""

    def put_file(self, _: str, target: str) -> None:
        Path(target).write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_copy_that_fails_leaves_no_part_in_the_store(tmp_path: Path) -> None:
    """Neither does one whose process was killed, once the next copy begins."""
    (source := tmp_path / "weights").write_text("whole")
    (folder := tmp_path / "store" / "checkpoints").mkdir(parents=True)
    store, full = (ObjectStore(f"file://{tmp_path}/store") for _ in range(2))
    full.__dict__["_files"] = FullDisk()
    (folder / ".weights.1-abcd.part").write_text("half")
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="free some space"):
            full.upload("checkpoints/weights", source)
        assert list(folder.iterdir()) == []
    store.upload("checkpoints/weights", source)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("weights", "whole")]
