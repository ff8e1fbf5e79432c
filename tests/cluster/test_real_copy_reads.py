"""Reads at copies by both kinds of client, of members that are the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import tidelog
from support.real_members import real_members, serves, url_of
from tidelog.codecs import I64, Str
from tidelog.errors import ReadOnlyError, UsageError

NAMES = [f"k{number}" for number in range(30)]
CONTENT = {name: number for number, name in enumerate(NAMES)}


def test_threads_and_tasks_read_from_copies_as_from_the_primary(tmp_path: Path) -> None:
    with real_members(tmp_path, 3, 4, backups=2) as running:
        url = url_of(running)
        with tidelog.connect(url) as db, tidelog.connect(url, read_from="copies") as copies:
            while not serves(db.status()):
                pass
            writing = db.map("m", key=Str, value=I64)
            reading = copies.map("m", key=Str, value=I64)
            for name, number in CONTENT.items():
                writing[name] = number
                assert reading[name] == number
            assert reading.get_many(NAMES) == CONTENT
            assert dict(reading.items()) == CONTENT
            assert len(reading) == len(CONTENT)
            stale = copies.stale()
            older = stale[reading]
            while dict(older.items()) != CONTENT:  # a copy may not have heard of the end yet
                pass
            assert older.get_many(NAMES) == CONTENT
            assert (older["k3"], "k4" in older, older.get("none")) == (3, True, None)
            assert sorted(stale.as_of) == [0, 1, 2, 3]
            assert sum(lwm for _, lwm in stale.as_of.values()) == len(CONTENT)
            with pytest.raises(ReadOnlyError):
                older["k3"] = 4
            with pytest.raises(UsageError, match="primary, copies"):
                tidelog.connect(url, read_from="anybody")  # type: ignore[arg-type]
            assert trio.run(read_by_tasks, url) == dict(stale.as_of)


async def read_by_tasks(url: str) -> dict[int, tuple[int, int]]:
    """Read all in each way; return how old the stale read was."""
    async with tidelog.aio.connect(url, read_from="copies") as db:
        m = db.map("m", key=Str, value=I64)
        assert await m.get_many(NAMES) == CONTENT
        assert {key: value async for key, value in m.items()} == CONTENT
        stale = db.stale()
        while {key: value async for key, value in stale[m].items()} != CONTENT:
            pass
        with pytest.raises(ReadOnlyError):
            await stale[m].set("k3", 4)
        return dict(stale.as_of)
