"""Which items of a stream a copy stores at once, and which with its next group."""

from __future__ import annotations

from typing import Any

import pytest

from support.fold_scripts import record_of
from support.group_transactions import BOB, TX
from tidelog.engine.node.arrivals import ArrivedItems
from tidelog.engine.replication.following import Following
from tidelog.engine.replication.stream import Item, Streamed
from tidelog.engine.replication.streams import ITEM_OVERHEAD
from tidelog.wal.records import CommitRecord, OutcomesRecord, RollbackRecord, Run

RUN = Run(0, 1, 1, 1)
RECORDS: dict[str, Any] = {
    "open": record_of("open p0 e1"),
    "prepare": record_of("prepare A p0 e1 #1: a=1"),
    "part": record_of("prepare B p0 e1 #2 with p1: b=1"),
    "upto": record_of("commit_upto p0 e1 #1"),
    "commit": CommitRecord(tx_id=TX, attempt=1, time=1, participants=(RUN,), applied=(0,)),
    "rollback": RollbackRecord(tx_id=TX, time=1, reason="refused", runs=(RUN,), attempt=1),
    "outcomes": OutcomesRecord(partition=0, forgotten=(TX,)),
}


def arrived(*records: Streamed) -> ArrivedItems:
    items = [Item(0, 0, 1, number, record) for number, record in enumerate(records, 1)]
    nobody: Any = None
    return ArrivedItems(items, {0: Following(0, 1, BOB)}, nobody, nobody)


@pytest.mark.parametrize(
    ("names", "matters"),
    [
        ("open", True), ("prepare", True), ("part", True), ("upto", False), ("commit", False),
        ("rollback", False), ("outcomes", False), ("upto commit rollback outcomes", False),
        ("commit upto prepare", True), ("prepare outcomes", True), ("open commit", True),
    ],
)  # fmt: skip
def test_only_what_somebody_waits_for_is_stored_at_once(names: str, matters: bool) -> None:
    assert arrived(*map(RECORDS.__getitem__, names.split())).matters is matters


def test_what_has_arrived_counts_in_the_queue_of_the_log_with_what_it_writes() -> None:
    commit = arrived(*map(RECORDS.__getitem__, ("open", "prepare", "part"))).commit(lambda _: None)
    assert commit.size == 3 * ITEM_OVERHEAD + 2 * len(b"a1")
