"""What a log that goes on from itself may not say."""

from __future__ import annotations

from support.logs import LogBuilder
from tidelog.affinity.partitions import Space
from tidelog.checkpoints.continuity import Continuity
from tidelog.checkpoints.replay import State
from tidelog.wal.format import Frame
from tidelog.wal.records import (
    AdmitRecord,
    CommitUptoRecord,
    Participant,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    StateRecord,
    Upto,
)


def test_the_time_of_a_log_may_begin_at_zero_and_does_not_fall() -> None:
    log = LogBuilder()
    wrong: list[str] = []
    continuity = Continuity(wrong.append)
    (frame,) = log.frames
    continuity.take(frame, log.state())
    for number, time in enumerate((0, 0, 7, 7, 6, 7), start=1):
        run = Run(0, 1, number, 1)
        continuity.take(frame, RollbackRecord(tx_id=bytes(16), time=time, reason="", runs=(run,)))
    assert wrong == [f"segment 1, offset {frame.offset}: commit time 6 after 7 in partition 0"]


SPACES = (Space(0, 2), Space(2, 1))


def told(*states: StateRecord, spaces: tuple[Space, ...] | None = None) -> list[str]:
    wrong: list[str] = []
    continuity = Continuity(wrong.append, spaces)
    for position, state in enumerate(states):
        continuity.take(Frame(position, 0, b"", 1, position), state)
    return wrong


def head(*spaces: Space, epoch: int = 1) -> StateRecord:
    state = State(b"", spaces)
    state.epochs = [epoch] * state.partitions
    return state.record(0)


def test_a_store_may_have_grown_by_whole_spaces_and_by_nothing_else() -> None:
    small, grown = head(*SPACES[:1]), head(*SPACES)
    for spaces in (None, SPACES):
        assert told(small, small, grown, grown, spaces=spaces) == []
        for states in ((grown, small), (small, head(Space(0, 3))), (grown, head(Space(0, 3)))):
            (wrong,) = told(*states, spaces=spaces)
            assert "partitions" in wrong
    assert "the state of 3 partitions" in told(grown, spaces=SPACES[:1])[0]
    assert "the state of 1 partitions" in told(head(Space(0, 1)), spaces=SPACES)[0]
    assert "other epochs" in told(small, head(*SPACES, epoch=2))[0]


def test_numbers_of_a_space_that_was_added_go_on_from_there() -> None:
    wrong: list[str] = []
    continuity = Continuity(wrong.append)
    grown = State(b"", SPACES)
    grown.counters[2].update(0, 4)
    records: list[Record] = [head(*SPACES[:1]), grown.record(0), rollback(2, 5), rollback(2, 4)]
    for position, record in enumerate(records):
        continuity.take(Frame(position, 0, b"", 1, position), record)
    assert wrong == ["segment 1, offset 3: partition 2, numbers 4..4 for a second time"]
    assert [counter.lwm for counter in continuity.bases] == [0, 0, 4]


def rollback(partition: int, number: int) -> RollbackRecord:
    run = Run(partition, 1, number, 1)
    return RollbackRecord(tx_id=bytes(16), time=0, reason="", runs=(run,))


def test_commits_up_to_a_number_are_of_transactions_that_write_one_partition() -> None:
    # Another one is still pending, and may be rolled back: its numbers came "for a second time".
    def prepare(number: int, first: int, count: int, *others: Participant) -> PrepareRecord:
        run = Run(0, 1, first, count)
        return PrepareRecord(
            tx_id=bytes([number]) * 16, attempt=1, near=(bytes(16), 1), time=0, home=0,
            participants=(Participant(0, 1, count), *others), run=run,
            namespaces=16, keys=[b"k"] * count, values=[b"v"] * count,
        )  # fmt: skip

    prepared = [prepare(1, 1, 1), prepare(2, 2, 1, Participant(1, 1, 1)), prepare(3, 3, 2)]
    ended = [
        RollbackRecord(tx_id=one.tx_id, time=0, reason="", runs=(one.run,)) for one in prepared
    ]
    wrong: list[str] = []
    continuity = Continuity(wrong.append)
    records: list[Record] = [
        head(*SPACES),
        *prepared,
        CommitUptoRecord(rows=(Upto(0, 1, 3),)),
        *ended,
    ]
    for position, record in enumerate(records):
        continuity.take(Frame(position, 0, b"", 1, position), record)
    assert wrong == ["segment 1, offset 5: partition 0, numbers 1..1 for a second time"]


def test_what_is_pending_comes_again_with_an_admission_and_has_the_time_that_it_had() -> None:
    def prepare(number: int, time: int) -> PrepareRecord:
        return PrepareRecord(
            tx_id=bytes([number]) * 16, attempt=1, near=(bytes(16), 1), time=time, home=0,
            participants=(Participant(0, 1, 1),), run=Run(0, 1, number, 1),
            namespaces=16, keys=[b"k"], values=[b"v"],
        )  # fmt: skip

    first, second = prepare(1, 5), prepare(2, 7)
    admit = AdmitRecord(
        partition=0, admission=3, epochs=((1, 1),), lwm=0, ranges=(), hwm=2,
        dropped=(first.tx_id, second.tx_id),
    )  # fmt: skip
    wrong: list[str] = []
    continuity = Continuity(wrong.append)
    records: list[Record] = [head(*SPACES), first, second, admit, first, second, prepare(3, 6)]
    for position, record in enumerate(records):
        continuity.take(Frame(position, 0, b"", 1, position), record)
    assert wrong == ["segment 1, offset 6: commit time 6 after 7 in partition 0"]
