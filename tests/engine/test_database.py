"""What a plain update asks of the store before it goes into the log."""

from __future__ import annotations

import pytest

from support.stores import opened
from tidelog.engine.database import Database


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
