"""Copies that a reset has left behind are kept one after the other, each in files of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio

from support.takeovers import state_of
from tidelog.affinity.topology import Incarnation, Loss, Topology
from tidelog.engine.data.stored import pack_prefix
from tidelog.engine.node import aside
from tidelog.engine.node.aside import Aside
from tidelog.engine.node.tasks import Tasks
from tidelog.testing.disk import FaultyDisk
from tidelog.wal.records import NamespaceRecord

MAPS = {
    number: NamespaceRecord(
        id=number, name=name, key_codec="str", key_version=1, value_codec="bytes",
        value_version=1, space=0,
    )
    for number, name in ((16, "a"), (17, "b"))
}  # fmt: skip
AUTHOR = Incarnation(UUID(int=1), 1)


class Around:
    """A member with copies of two partitions from before a reset; work runs when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = FaultyDisk(1)
        self.disk.make_directory("/m")
        self.state = state_of()
        for partition in (0, 1):
            self.state.counters[partition].update(0, 3)
            self.state.copies.sealed[partition] = 1
        self.state.namespaces.update(MAPS)
        self.running = self.most = 0
        environment: Any = SimpleNamespace(run=self._run, disk=self.disk)
        files: Any = SimpleNamespace(path="/m", environment=environment)
        log: Any = SimpleNamespace(state=self.state)
        monkeypatch.setattr(aside, "_Pairs", Pairs)
        self.tasks = Tasks()
        self.here = Aside(files, log, self.tasks)

    def lose(self, *upto: int) -> None:
        losses = tuple(
            Loss(
                index=2, partition=partition, before=1, epoch=2, author=AUTHOR, opened=1, upto=known
            )
            for partition, known in enumerate(upto)
        )
        self.here.decided(Topology(index=2, losses=losses))

    async def _run(self, _kind: str, work: Callable[[], Any]) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        await trio.sleep(0)
        self.running -= 1
        return work()

    def lines(self) -> dict[str, list[dict[str, Any]]]:
        return {
            path.rsplit("/", 1)[1]: list(map(json.loads, self.disk.read_bytes(path).splitlines()))
            for path in self.disk.paths()
        }


class Pairs:
    """Two keys of one map and one of another, which tell whose they are."""

    def __init__(self, _files: object, _log: object, partition: int) -> None:
        self._partition = partition

    def __iter__(self) -> Any:
        for number, key in ((16, b"x"), (16, b"y"), (17, b"z"), (18, b"of a map that is gone")):
            yield pack_prefix(self._partition, number) + key, b"%d" % self._partition
        yield pack_prefix(self._partition, 17) + b"deleted", None

    def close(self) -> None:
        pass


def test_each_partition_has_files_of_its_own_and_one_is_written_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Written at once under one name, one partition's keys stood under the name of another, and
    # what they replaced was gone.
    around = Around(monkeypatch)
    around.lose(1, 2)

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(around.tasks.run)
            async with trio.open_nursery() as asked:
                for partition in (0, 1):
                    asked.start_soon(around.here.keep, partition)
            nursery.cancel_scope.cancel()

    trio.run(both)
    assert around.most == 1
    assert around.here.has_kept(0)
    assert around.here.has_kept(1)
    lines = around.lines()
    assert sorted(lines) == [
        f"partition-{partition}-epoch-1-upto-3-map-{number}.jsonl"
        for partition in (0, 1)
        for number in (16, 17)
    ]
    for name, found in lines.items():
        head, *pairs = found
        number, partition = name[-8:-6], name.split("-")[1]
        assert head["map"] == MAPS[int(number)].name
        assert {pair["value"]["s"] for pair in pairs} == {partition}
        assert len(pairs) == (2 if number == "16" else 1)


def test_only_what_the_copy_lacked_from_which_it_went_on_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    around = Around(monkeypatch)
    assert around.here.has_kept(0), "nothing was lost"
    around.lose(3, 2)
    assert around.here.has_kept(0), "the other copy had everything"
    assert not around.here.has_kept(1)
    around.state.copies.sealed.pop(1)
    assert around.here.has_kept(1), "it was never a whole copy"
