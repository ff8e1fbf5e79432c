from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from support.stores import opened
from tidelog.engine.store.statistics import Statistics


def test_a_new_store_has_done_almost_nothing() -> None:
    with opened() as store:
        found = store.database.statistics()
        assert (found.checkpoints, found.checkpoint_failures, found.overlay_bytes) == (0, 0, 0)
        assert (found.snapshots, found.oldest_snapshot_seconds) == (0, None)
        assert (found.pins, found.oldest_pin, found.readers) == ({}, None, {})
        assert found.position == found.durable_position
        assert found.group_size_mean == 0
        assert found.overlay_layers == 1


def test_figures_follow_what_happens() -> None:
    with opened() as store:
        users = store.database.map("users")
        before = store.database.statistics()
        for number in range(5):
            users[b"%d" % number] = b"v"
        after = store.database.statistics()
        assert after.transactions == before.transactions + 5
        assert after.groups == before.groups + 5
        assert after.syncs == before.syncs + 5
        assert after.group_size_mean == 1.0
        assert after.overlay_bytes > 5 * 200
        assert after.position > before.position
        store.database.checkpoint()
        last = store.database.statistics()
        assert last.checkpoints == 1
        assert last.overlay_bytes == 0
        assert after.position <= last.checkpoint_position <= last.position
        assert last.data_bytes > 0
        assert last.log_bytes == last.position - last.log_first_position


def test_syncs_are_timed_by_the_clock_of_the_store() -> None:
    with opened() as store:
        users = store.database.map("users")

        def slow(sync: Callable[[], Any]) -> None:
            store.environment.time.move(0.002)
            sync()

        with store.around_syncs(slow):
            for _ in range(200):
                users[b"a"] = b"v"
        found = store.database.statistics()
        assert round(found.sync_us_median) == round(found.sync_us_max) == 2000
        assert round(found.sync_us_p99) == 2000


def test_every_figure_is_a_plain_number_or_a_dict_of_them() -> None:
    with opened() as store:
        found = store.database.statistics()
        for field in fields(Statistics):
            value = getattr(found, field.name)
            assert value is None or isinstance(value, (int, float, dict)), field.name
