"""What a plain update asks of the store first, and in which order a store ends."""

from __future__ import annotations

import pytest

from support.interrupts import Interrupt, Tracer
from support.stores import Opened, open_store, opened
from tidelog.affinity.errors import ClosedError
from tidelog.engine.api.database import session_of
from tidelog.engine.api.session import StoreSession
from tidelog.engine.commit.committer import Committer
from tidelog.engine.store.ending import Ending
from tidelog.engine.store.maintenance import Maintenance


def test_room_is_looked_for_once_a_snapshot_keeps_a_layer_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The active layer is small then, whatever the others hold.
    with opened() as store:
        users = store.database.map("users")
        layers = store.parts.overlay
        looked: list[int] = []
        monkeypatch.setattr(
            StoreSession, "make_room", lambda _: looked.append(len(layers.view.layers))
        )
        users[b"a"] = b"1"
        assert looked == []
        with store.database.snapshot():
            users[b"b"] = b"1"
            assert len(layers.view.layers) == 2
            users[b"c"] = b"1"
            assert looked[-1] == 2


def test_a_close_that_is_cut_short_ends_all_commits_before_it_shuts_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whoever waited for a commit that was in the log already was never told of it.
    store = open_store()
    committer, shut = store.parts.committer, Ending._shut
    seen: list[str | None] = []

    def noted(ending: Ending) -> None:
        seen.append(committer.stopped)
        shut(ending)

    def interrupted(_ending: Ending) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Ending, "_shut", noted)
    monkeypatch.setattr(Ending, "_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.database.close()
    assert seen == ["the store is closed"]


@pytest.mark.parametrize(
    ("call", "owner", "name"),
    [
        ("close", Maintenance, "stop"),
        ("close", Ending, "_end"),
        ("abandon", Committer, "end"),
    ],
)
def test_an_interrupt_before_the_end_of_a_store_lets_go_of_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch, call: str, owner: type, name: str
) -> None:
    # The store could not be opened again before the process ended.
    store, method = open_store(), getattr(owner, name)

    def raises(*_args: object) -> None:
        monkeypatch.setattr(owner, name, method)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, raises)
    with pytest.raises(KeyboardInterrupt):
        getattr(session_of(store.database), call)()
    assert session_of(store.database).ending.released
    store.reopened().database.close()


@pytest.mark.slow
def test_a_close_that_is_interrupted_at_any_of_its_lines_is_ended_by_the_next_one() -> None:
    # That did nothing.
    lines = Tracer()
    lines.run(holding_a_pair().database.close)
    own = sorted(line for line in lines.lines if line[0] in CLOSING)
    assert len(own) > 40
    for line in own:
        store = holding_a_pair()
        snapshot, interrupted = store.database.snapshot(), Tracer((line, 0))
        with pytest.raises(Interrupt):
            interrupted.run(store.database.close)
        store.database.close()
        with pytest.raises(ClosedError):
            snapshot.__enter__()
        again = store.reopened()
        assert dict(again.database.map("m")) == {b"k": b"v"}, interrupted.where
        again.database.close()


CLOSING = ("engine/api/database.py", "engine/store/ending.py", "engine/store/store_files.py")


def holding_a_pair() -> Opened:
    """A store with a pair that is not durable yet."""
    store = open_store(durability="none", partitions=1)
    store.database.map("m")[b"k"] = b"v"
    return store
