"""What a read rests on, and what of it is being written: the part of copies without I/O."""

from __future__ import annotations

import pytest

from tidelog.checkpoints.copies import Copies, CopyState, Prepared
from tidelog.engine.node.copy_reads import PendingKeys
from tidelog.engine.node.reads import LookedUp
from tidelog.wal.records import Participant, PrepareRecord, Run

MAP, OTHER = 16, 17


def prepared(number: int, keys: list[bytes], namespaces: int | list[int] = MAP) -> PrepareRecord:
    return PrepareRecord(
        tx_id=bytes([number]) * 16,
        attempt=1,
        near=(b"n" * 16, 1),
        time=1,
        home=0,
        participants=(Participant(0, 1, len(keys)),),
        run=Run(0, 1, number, len(keys)),
        namespaces=namespaces,
        keys=keys,
        values=[b"v"] * len(keys),
    )


def by_keys(*keys: bytes) -> LookedUp:
    return LookedUp((), {0}, MAP, frozenset(keys))


def by_range(low: bytes, high: bytes | None) -> LookedUp:
    return LookedUp((), {0}, MAP, None, low, high)


@pytest.mark.parametrize(
    ("found", "meets"),
    [
        (by_keys(b"b"), True),
        (by_keys(b"a", b"b"), True),
        (by_keys(b"a"), False),
        (by_keys(b"z"), False),
        (by_range(b"", None), True),
        (by_range(b"b", b"c"), True),
        (by_range(b"", b"b"), False),
        (by_range(b"b\0", None), False),
    ],
)
def test_a_read_meets_what_is_written_to_its_keys_or_inside_its_range(
    found: LookedUp, meets: bool
) -> None:
    pending = Prepared()
    pending.add(prepared(1, [b"b", b"z"], [MAP, OTHER]))
    writing = PendingKeys()
    assert writing.meets(found, 0, pending) is meets
    assert writing.meets(found, 0, pending) is meets, "also if the keys are known"


def test_what_has_ended_is_met_no_more_and_what_came_is() -> None:
    pending, writing = Prepared(), PendingKeys()
    assert not writing.meets(by_keys(b"b"), 0, None)
    first, second = prepared(1, [b"b"]), prepared(2, [b"c"])
    pending.add(first)
    assert writing.meets(by_keys(b"b"), 0, pending)
    assert not writing.meets(by_keys(b"b"), 1, None), "partitions have their own"
    pending.take(first.tx_id, first.run)
    pending.add(second)
    assert not writing.meets(by_keys(b"b"), 0, pending)
    assert writing.meets(by_keys(b"c"), 0, pending)
    pending.take(second.tx_id, second.run)
    assert not writing.meets(by_keys(b"c"), 0, pending)
    assert writing._known == {}, "nothing is kept of what has ended"


def test_only_a_copy_that_was_open_and_lacks_nothing_is_whole() -> None:
    copies = Copies()
    assert not copies.is_whole(0)
    copies.open(0, 3)
    assert copies.is_whole(0)
    for state in (CopyState.MOVING, CopyState.NOT_WHOLE, CopyState.QUARANTINED):
        copies.states[0] = state
        assert not copies.is_whole(0)
