from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from support.stores import Opened, opened
from tidelog.affinity.errors import ClosedError, ForkedError, SnapshotExpiredError
from tidelog.engine.api import snapshots
from tidelog.engine.api.database import session_of
from tidelog.engine.api.snapshots import SnapshotSession, held_by
from tidelog.engine.api.transactions import behind
from tidelog.engine.api.unwritable import Unwritable
from tidelog.engine.data import point_reads
from tidelog.engine.store.live_snapshots import LiveSnapshots
from tidelog.engine.system.limits import Limits


@pytest.fixture
def store() -> Iterator[Opened]:
    with opened() as store:
        yield store


@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_stays_as_it_was_whatever_comes(store: Opened, seed: int) -> None:
    rng = random.Random(seed)
    users = store.database.map("users")
    twin: dict[bytes, bytes] = {}
    held = []
    for number in range(60):
        key = b"%d" % rng.randint(0, 9)
        match rng.choices("pdsce", (6, 2, 3, 1, 2))[0]:
            case "d":
                users.discard(key)
                twin.pop(key, None)
            case "s":
                held.append((store.database.snapshot(), dict(twin)))
            case "c":
                store.database.checkpoint()
            case "e" if held:
                held.pop(rng.randrange(len(held)))[0].close()
            case _:
                users[key] = twin[key] = b"%d" % number
        for snapshot, content in held:
            old = snapshot[users]
            assert dict(old) == content
            assert {key: old[key] for key in content} == content
            assert old.get(b"none") is None
        assert dict(users) == twin
    assert store.database.statistics().snapshots == len(held)
    for snapshot, _ in held:
        snapshot.close()
    assert store.database.statistics().snapshots == 0


def test_a_closed_snapshot_is_over_and_says_so(store: Opened) -> None:
    users = store.database.map("users")
    with store.database.snapshot() as snapshot:
        assert repr(snapshot) == f"<Snapshot position={snapshot.position}>"
        old = snapshot[users]
    assert repr(snapshot).endswith(" closed>")
    snapshot.close()
    for act in (
        lambda: snapshot[users],
        lambda: old.get(b"a"),
        lambda: list(old),
        snapshot.__enter__,
    ):
        with pytest.raises(ClosedError):
            act()
    assert held_by(snapshot).layers() is None


def test_a_read_during_which_its_snapshot_ends_shows_nothing_newer(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another thread closed it, its layers were merged with newer ones, and a read showed these.
    db = store.database
    users = db.map("users")
    users[b"a"] = b"old"
    read_view = point_reads.read_view
    with db.snapshot() as snapshot, db.transaction(plain_writes=True) as tx:
        assert tx[users].get(b"none") is None
        for ended, old in (
            (held_by(snapshot), snapshot[users]),
            (behind(tx)._reading, tx[users]),
        ):
            assert ended is not None

            def overtaken(*given: Any, ended: SnapshotSession = ended) -> bytes | None:
                monkeypatch.setattr(snapshots, "read_view", read_view)
                ended.expire("it was in the way")
                users[b"a"] = b"new"
                db.snapshot().close()
                db.snapshot().close()
                return read_view(*given)

            monkeypatch.setattr(snapshots, "read_view", overtaken)
            with pytest.raises(SnapshotExpiredError):
                old.get(b"a")
        tx.rollback()


def test_an_expired_snapshot_says_why(store: Opened) -> None:
    users = store.database.map("users")
    snapshot = store.database.snapshot()
    held_by(snapshot).expire("it was in the way")
    held_by(snapshot).expire("again")
    with pytest.raises(SnapshotExpiredError, match="it was in the way"):
        _ = snapshot[users]


def test_a_scan_whose_snapshot_is_closed_under_it_stops(store: Opened) -> None:
    users = store.database.map("users")
    users.update_many({b"%04d" % number: b"v" for number in range(1000)})
    snapshot = store.database.snapshot()
    scan = iter(snapshot[users].items())
    next(scan)
    snapshot.close()
    with pytest.raises(ClosedError):
        list(scan)


def test_what_was_read_while_a_snapshot_ended_is_not_shown(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its layers may have been merged with newer ones by then.
    users = store.database.map("users")
    users[b"a"] = b"1"
    snapshot = store.database.snapshot()
    scan = vars(snapshots)["scan"]

    def ends(*args: Any, **options: Any) -> Iterator[Any]:
        for pairs in scan(*args, **options):
            snapshot.close()
            yield pairs

    monkeypatch.setattr(snapshots, "scan", ends)
    with pytest.raises(ClosedError):
        next(iter(snapshot[users].items()))


def test_a_fork_takes_from_iterations_what_they_have_in_hand(store: Opened) -> None:
    # In the child; it would have shown the rest of a block that the parent had read.
    users = store.database.map("users")
    users.update_many({b"%d" % number: b"v" for number in range(9)})
    snapshot = store.database.snapshot()
    scan = iter(snapshot[users].items())
    assert next(scan) == (b"0", b"v")
    held_by(snapshot).forked(lambda: ForkedError("it was opened by the parent"))
    with pytest.raises(ForkedError):
        next(scan)


def test_a_snapshot_that_is_forgotten_holds_nothing(store: Opened) -> None:
    users = store.database.map("users")
    users[b"a"] = b"1"
    store.database.snapshot()
    users[b"a"] = b"2"
    assert store.database.statistics().snapshots == 0


def test_only_the_finalizer_of_a_forgotten_snapshot_is_python(store: Opened) -> None:
    """A signal in the callback of its reference left that behind, dead, in the list."""
    live, held = LiveSnapshots(), [session_of(store.database).snapshot()]
    live.add(held[0])
    called = list[str]()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        held.clear()
    finally:
        sys.setprofile(None)
    assert called == ["SnapshotSession.__del__", "SnapshotSession.close"]
    assert live._refs == {}


def test_the_position_of_a_snapshot_is_that_of_the_newest_commit(store: Opened) -> None:
    users = store.database.map("users")
    with store.database.transaction() as tx:
        tx[users][b"a"] = b"1"
    assert tx.receipt is not None
    with store.database.snapshot() as snapshot:
        assert snapshot.position == tx.receipt.position


def test_the_age_of_the_oldest_snapshot_is_told(store: Opened) -> None:
    assert store.database.statistics().oldest_snapshot_seconds is None
    first = store.database.snapshot()
    store.environment.time.move(5)
    second = store.database.snapshot()
    store.environment.time.move(2)
    assert store.database.statistics().oldest_snapshot_seconds == 7
    first.close()
    assert store.database.statistics().oldest_snapshot_seconds == 2
    second.close()


def test_a_snapshot_that_pins_too_much_memory_is_ended_and_younger_ones_are_not() -> None:
    with opened(snapshot_memory_max=20_000) as store:
        users = store.database.map("users")

        def fill(size: int) -> None:
            users[b"a"] = b"x" * size

        fill(5_000)
        light = store.database.snapshot()
        store.database.checkpoint()
        assert light[users][b"a"] == b"x" * 5_000
        fill(30_000)
        heavy = store.database.snapshot()
        store.database.checkpoint()
        with pytest.raises(SnapshotExpiredError, match="snapshot_memory_max"):
            light.__enter__()
        store.database.checkpoint()
        with pytest.raises(SnapshotExpiredError):
            heavy.__enter__()
        with store.database.snapshot() as fresh:
            store.database.checkpoint()
            assert len(fresh[users][b"a"]) == 30_000


def test_a_snapshot_without_waiting_is_refused_where_it_would_cost_much() -> None:
    with opened(limits=Limits(merged_nowait_bytes=1000)) as store:
        users = store.database.map("users")
        users[b"a"] = b"1"
        snapshot = session_of(store.database).snapshot_nowait()
        assert snapshot is not None
        with snapshot:
            assert snapshot.map_inside(users)[b"a"] == b"1"
            users[b"b"] = bytes(1000)
            assert session_of(store.database).snapshot_nowait() is None
        with store.parts.committer.mutex:
            assert session_of(store.database).snapshot_nowait() is None
        assert store.database.statistics().snapshots == 0


def test_a_session_that_refuses_to_write_has_to_say_why() -> None:
    # One that did not could be made, and raised `NotImplementedError` at the first write.
    silent = type("Silent", (Unwritable,), {})
    with pytest.raises(TypeError, match="refuse"):
        silent()
