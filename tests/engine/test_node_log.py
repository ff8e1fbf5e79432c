"""What a member's log says by itself when it begins: how far what is prepared has committed."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from support.fold_scripts import PARTITIONS, id_of, record_of
from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.replay import State
from tidelog.engine.node.log import NodeLog
from tidelog.engine.replication.streams import Streams
from tidelog.wal.records import CommitUptoRecord, Pending, Run, Upto, decode_payload

OPENED = ("settle p0 e1 from #1", "open p0 e1")


def state_of(*lines: str) -> State:
    """The fold of records, as scripts have them."""
    state = State(b"s" * 16, one_space(PARTITIONS))
    for position, line in enumerate(lines):
        state.apply(position, record_of(line))
    return state


def log_of(state: State) -> NodeLog:
    """A log without a disk: nothing that is queued is carried."""
    environment = SimpleNamespace(
        clock=lambda: 1, new_id=lambda: bytes(16), boottime=lambda: 1.0, monotonic=lambda: 1.0
    )
    files: Any = SimpleNamespace(
        environment=environment,
        mutex=threading.Lock(),
        state=state,
        overlay=None,
        writer=SimpleNamespace(position=0),
        keeper=SimpleNamespace(note_given_id=None),
        path="store",
    )
    return NodeLog(files, Streams())


def told_at_recovery(state: State) -> list[Any]:
    """The records that the log is given when its member begins."""
    log = log_of(state)
    log.tell_recovered()
    _, *queued = log.waiting
    return [record for commit in queued for record in decode_payload(commit.record(0))]  # type: ignore[attr-defined]  # a commit of the log's own


def upto(last: int) -> list[CommitUptoRecord]:
    return [CommitUptoRecord(rows=(Upto(0, 1, last),))]


APPLIED = ("prepare A p0 e1 #1: a=1", "commit_upto p0 e1 #1")
BELOW = ("prepare A p0 e1 #1 with p1: a=1", "prepare B p0 e1 #2: b=1", "commit_upto p0 e1 #2")


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        (APPLIED, 1),
        # What is of several groups is pending below, and says nothing of what was prepared behind.
        (BELOW, 2),
        ((*BELOW, "prepare C p0 e1 #3 with p1: c=1"), 2),
        ((*BELOW, "commit A time 9: p0 e1 #1+1, p1 e1 #1+1; here p0"), 2),
        # What is of this partition alone commits in its order, so the first one that waits ends it.
        ((*BELOW, "prepare C p0 e1 #3: c=1", "prepare D p0 e1 #4: d=1"), 2),
        ((*BELOW, "prepare C p0 e1 #3: c=1", "prepare D p0 e1 #4 with p1: d=1",
          "commit D time 9: p0 e1 #4+1, p1 e1 #1+1; here p0"), 2),
        (("prepare A p0 e1 #1 with p1: a=1", "prepare D p0 e1 #2 with p1: d=1",
          "commit D time 9: p0 e1 #2+1, p1 e1 #1+1; here p0"), 2),
    ],
)  # fmt: skip
def test_what_has_committed_before_is_told_over_what_waits_for_other_groups(
    lines: tuple[str, ...], last: int
) -> None:
    state = state_of(*OPENED, *lines)
    waiting = [one.tx_id for one in state.copies.prepared(0).all()]
    [told] = told_at_recovery(state)
    assert [told] == upto(last)
    state.apply(99, told)
    assert [one.tx_id for one in state.copies.prepared(0).all()] == waiting, "it tells nothing new"


def test_who_reads_the_log_alone_learns_by_it_what_has_committed() -> None:
    # The word of the process before has not reached the log: what has committed is in its state.
    [told] = told_at_recovery(state_of(*OPENED, *BELOW))
    reader = state_of(*OPENED, *BELOW[:-1])
    assert [one.tx_id for one in reader.copies.prepared(0).all()] == [id_of("A"), id_of("B")]
    reader.apply(99, told)
    assert [one.tx_id for one in reader.copies.prepared(0).all()] == [id_of("A")]


def test_what_the_head_of_a_segment_has_pending_may_be_of_one_group() -> None:
    state = state_of(*OPENED, *BELOW)
    state.copies.prepared(0).add(Pending(id_of("C"), 1, Run(0, 1, 2, 1)))
    assert told_at_recovery(state) == upto(1)


def test_nothing_is_told_where_nothing_has_committed_or_nobody_else_has_a_copy() -> None:
    assert told_at_recovery(state_of()) == []
    assert told_at_recovery(state_of(*OPENED, "prepare A p0 e1 #1: a=1")) == []
    assert told_at_recovery(state_of(*OPENED, "prepare A p0 e1 #1 with p1: a=1")) == []
    assert told_at_recovery(state_of("tx A p0 e1 #1: a=1")) == [], "of a store of its own"
