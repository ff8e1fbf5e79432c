"""What a plain update asks of the store first, and in which order a store ends."""

from __future__ import annotations

from typing import Any

import pytest

from support.stores import open_store, opened
from tidelog.engine.api.database import Database


def test_room_is_looked_for_once_a_snapshot_keeps_a_layer_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The active layer is small then, whatever the others hold.
    with opened() as store:
        users = store.database.map("users")
        layers = store.parts.overlay
        looked: list[int] = []
        monkeypatch.setattr(Database, "make_room", lambda _: looked.append(len(layers.view.layers)))
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
    committer, shut = store.parts.committer, Database._shut
    seen: list[str | None] = []

    def noted(database: Database, error: Any) -> None:
        seen.append(committer.stopped)
        shut(database, error)

    def interrupted(_database: Database) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Database, "_shut", noted)
    monkeypatch.setattr(Database, "_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.database.close()
    assert seen == ["the store is closed"]
