"""The fold of the log: by hand, then from every earlier position of a random log."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from support.interrupts import Interrupt, Tracer
from tidelog.affinity.errors import CorruptLogError
from tidelog.affinity.partitions import Space, one_space
from tidelog.checkpoints.marks import PartitionMark
from tidelog.checkpoints.replay import FIRST_NAMESPACE, Applied, Effect, State
from tidelog.tx.counter import PartitionUpdateCounter
from tidelog.wal.records import (
    HIDDEN,
    CheckpointRecord,
    Columns,
    DropNamespaceRecord,
    EpochRecord,
    IdleRecord,
    IngestRecord,
    NamespaceRecord,
    Record,
    RollbackRecord,
    Run,
    StateRecord,
    TxRecord,
    UnknownRecord,
    decode_payload,
    encode_record,
)

STORE_ID = b"s" * 16
PARTITIONS = 3


def transaction(*runs: Run, time: int = 1) -> TxRecord:
    count = sum(run.count for run in runs)
    return TxRecord(
        tx_id=b"t" * 16,
        time=time,
        runs=runs,
        namespaces=16,
        keys=[b"k"] * count,
        values=[b"v"] * count,
    )


def runs_of(effects: list[Effect]) -> list[Run]:
    return [effect.run for effect in effects if isinstance(effect, Applied)]


def namespace(number: int, name: str) -> NamespaceRecord:
    return NamespaceRecord(
        id=number, name=name, key_codec="bytes", key_version=1, value_codec="bytes", value_version=1
    )


def renamed(state: State, number: int, name: str) -> NamespaceRecord:
    return replace(state.namespaces[number], name=name)


def marks_of(state: State, position: int) -> dict[int, PartitionMark]:
    """The marks that a checkpoint of this state writes, without its data."""
    return {
        partition: PartitionMark(
            position=position,
            written=position,
            counter=state.counters[partition].to_bytes(),
            epochs=state.epoch_tables[partition],
            count=0,
            digest=0,
        )
        for partition in range(PARTITIONS)
    }


def shape(state: State) -> dict[str, Any]:
    return {
        "counters": state.counters,
        "tables": state.epoch_tables,
        "epochs": state.epochs,
        "namespaces": state.namespaces,
        "next": state.next_namespace,
        "time": state.time,
    }


# ------------------------------------------------------------------ by hand


def test_a_new_state_is_at_zero() -> None:
    state = State(STORE_ID, one_space(2))
    assert state.counters == [PartitionUpdateCounter()] * 2
    assert state.epochs == [1, 1]
    assert state.next_namespace == FIRST_NAMESPACE
    assert shape(State.from_marks(STORE_ID, one_space(2), None, {})) == shape(state)


GROWN = (Space(0, 2), Space(2, 3, 1))


def grown_state() -> StateRecord:
    """What the head of a segment says once a store of two partitions has got three more."""
    state = State(STORE_ID, GROWN)
    state.counters[0].update(0, 4)
    state.counters[3].update(0, 2)
    state.epochs[4], state.epoch_tables[4] = 7, ((1, 1), (7, 1))
    return state.record(5)


def test_a_store_grows_by_whole_spaces() -> None:
    state = State(STORE_ID, GROWN[:1])
    state.apply(0, transaction(Run(0, 1, 1, 5)))
    with pytest.raises(CorruptLogError, match="partition 4 of 2"):
        state.apply(1, transaction(Run(4, 7, 1, 1)))
    for _ in range(2):  # the second time there is nothing new
        assert state.apply(2, grown_state()) == []
        assert (state.spaces, state.partitions) == (GROWN, 5)
        assert [counter.lwm for counter in state.counters] == [5, 0, 0, 2, 0]
        assert state.epochs == [1, 1, 1, 1, 7]
        assert len(state.epoch_tables) == len(state.replay_from) == 5
    assert runs_of(state.apply(3, transaction(Run(4, 7, 1, 1)))) == [Run(4, 7, 1, 1)]
    # An older head, from before, takes nothing away; both make the same of what follows.
    state.apply(4, State(STORE_ID, GROWN[:1]).record(1))
    assert state.spaces == GROWN
    again = State.from_record(state.record(9))
    assert (again.counters, again.epochs, again.spaces) == (state.counters, state.epochs, GROWN)
    assert again.epoch_tables == state.epoch_tables


@pytest.mark.parametrize(
    "spaces",
    [(Space(0, 5),), (Space(0, 3), Space(3, 2)), (Space(0, 1),), (Space(0, 1), Space(1, 4))],
)
def test_a_head_with_other_spaces_contradicts_the_store(spaces: tuple[Space, ...]) -> None:
    state = State(STORE_ID, GROWN)
    with pytest.raises(CorruptLogError, match="spaces"):
        state.apply(0, State(STORE_ID, spaces).record(1))
    assert (state.spaces, len(state.counters)) == (GROWN, 5)


def test_how_many_backups_a_space_has_may_change() -> None:
    state = State(STORE_ID, GROWN)
    assert state.apply(0, State(STORE_ID, (Space(0, 2, 2), Space(2, 3))).record(1)) == []


def test_a_map_lies_in_a_space_that_is_there() -> None:
    state = State(STORE_ID, GROWN)
    record = replace(namespace(16, "far"), space=1)
    state.apply(0, record)
    assert state.space_of(record) == GROWN[1]
    with pytest.raises(CorruptLogError, match="space 2 of 2"):
        state.apply(0, replace(record, id=17, space=2))


def test_a_transaction_moves_its_counters_and_says_where_its_keys_are() -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    runs = (Run(2, 1, 1, 3), Run(0, 1, 1, 1), Run(2, 1, 4, 1))
    found = state.apply(0, transaction(*runs, time=9))
    assert found == [
        Applied(run, 9, Columns(16, [b"k"] * run.count, [b"v"] * run.count), late=False)
        for run in runs
    ]
    assert [counter.lwm for counter in state.counters] == [1, 0, 4]
    assert state.time == 9
    assert state.touched == set()


def test_what_a_partition_has_already_is_passed_over() -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    state.replay_from = [0, 100, 0]
    runs = (Run(1, 1, 1, 2), Run(2, 1, 1, 1))
    assert runs_of(state.apply(99, transaction(*runs))) == [runs[1]]
    assert runs_of(state.apply(100, transaction(Run(1, 1, 1, 2)))) == [runs[0]]
    assert [counter.lwm for counter in state.counters] == [0, 2, 1]


def test_a_partition_is_replayed_from_the_newer_one_of_its_mark_and_the_stores() -> None:
    empty = State(STORE_ID, one_space(PARTITIONS))
    older = replace(PartitionMark.empty(), position=5, written=5)
    ahead = replace(PartitionMark.empty(), position=12, written=12)
    begun = replace(PartitionMark.empty(), position=5, written=20)
    marks = {0: older, 1: ahead, 2: begun}
    state = State.from_marks(STORE_ID, one_space(PARTITIONS), empty.mark(9), marks)
    assert state.replay_from == [9, 12, 9]
    assert (state.position, state.durable) == (9, 20)


def test_a_rollback_closes_numbers_and_leaves_no_data() -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    record = RollbackRecord(tx_id=bytes(16), time=5, reason="gap", runs=(Run(1, 1, 1, 4),))
    assert state.apply(0, record) == []
    assert state.counters[1].lwm == 4
    assert (state.touched, state.time) == ({1}, 5)


def test_a_load_closes_numbers_and_tells_who_lacks_its_rows() -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    state.replay_from = [0, 0, 100]
    state.apply(0, namespace(20, HIDDEN + "load"))
    runs = (Run(1, 1, 1, 4), Run(2, 1, 1, 4))
    digests = (bytes(25),) * 2
    record = IngestRecord(time=5, namespace=20, load=bytes(16), runs=runs, digests=digests)
    for _ in range(2):
        assert state.apply(10, record) == []
    assert [counter.lwm for counter in state.counters] == [0, 4, 0]
    assert (state.touched, state.time, state.without_rows()) == ({1, 2}, 5, [])
    state.apply(11, renamed(state, 20, "new"))
    assert state.without_rows() == ["new"]
    state.apply(12, DropNamespaceRecord(id=20, time=6))
    assert state.without_rows() == []


def test_time_never_falls() -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    for partition, time in enumerate((9, 3, 5)):
        state.apply(0, transaction(Run(partition, 1, 1, 1), time=time))
    state.apply(0, RollbackRecord(tx_id=bytes(16), time=2, reason="", runs=()))
    state.apply(0, EpochRecord(time=1, first_partition=0, epochs=[], starts=[]))
    assert state.time == 9


def test_names_come_and_change_and_go_and_their_ids_are_not_used_again() -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    state.apply(0, namespace(20, "old"))
    state.apply(0, renamed(state, 20, "new"))
    assert state.namespaces[20].name == "new"
    state.apply(0, DropNamespaceRecord(id=20, time=1))
    state.apply(0, DropNamespaceRecord(id=20, time=1))
    assert (state.namespaces, state.dropped, state.next_namespace) == ({}, {20}, 21)
    state.apply(0, namespace(20, "old"))
    assert state.namespaces == {}


def test_epochs_rise_and_are_never_lowered() -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    state.apply(0, EpochRecord(time=1, first_partition=1, epochs=[5, 6], starts=[1, 10]))
    assert state.epochs == [1, 5, 6]
    assert state.epoch_tables == [((1, 1),), ((5, 1),), ((1, 1), (6, 10))]
    assert state.touched == {1, 2}
    state.apply(0, EpochRecord(time=1, first_partition=1, epochs=[5, 3], starts=[9, 9]))
    assert state.epoch_tables[1:] == [((5, 1),), ((1, 1), (6, 10))]


def test_the_next_epochs_begin_behind_all_numbers_that_were_given_out() -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    state.apply(0, transaction(Run(1, 1, 1, 4)))
    state.counters[2].reserve(2)
    record = state.next_epochs(7)
    assert (record.epochs, record.starts) == ([2, 2, 2], [1, 5, 3])
    state.apply(0, record)
    assert state.epochs == [2, 2, 2]
    assert state.apply(0, transaction(Run(1, 2, 5, 1)))
    with pytest.raises(CorruptLogError):
        state.apply(0, transaction(Run(1, 1, 6, 1)))


@pytest.mark.parametrize(
    "record",
    [
        transaction(Run(PARTITIONS, 1, 1, 1)),
        transaction(Run(0, 2, 1, 1)),
        RollbackRecord(tx_id=bytes(16), time=1, reason="", runs=(Run(9, 1, 1, 1),)),
        EpochRecord(time=1, first_partition=2, epochs=[2, 2], starts=[1, 1]),
    ],
    ids=["partition", "epoch", "rollback", "epochs"],
)
def test_a_record_that_contradicts_the_store_is_damage(record: Record) -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    with pytest.raises(CorruptLogError, match="position 55") as caught:
        state.apply(55, record)
    assert (caught.value.kind, caught.value.offset) == ("damaged", 55)


@pytest.mark.parametrize(
    "record",
    [
        IdleRecord(),
        CheckpointRecord(position=1, time=2),
        UnknownRecord(type=99, body=b""),
        State(STORE_ID, one_space(PARTITIONS)).record(7),
    ],
    ids=lambda record: type(record).__name__,
)
def test_other_records_change_nothing(record: Record) -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    assert state.apply(0, record) == []
    assert shape(state) == shape(State(STORE_ID, one_space(PARTITIONS)))


def test_the_state_record_has_all_that_a_reader_needs() -> None:
    state = State(STORE_ID, one_space(PARTITIONS))
    state.apply(0, namespace(16, "users"))
    state.apply(0, transaction(Run(1, 1, 3, 2)))
    state.counters[0].reserve(4)
    record = state.record(9)
    assert (record.lwms, record.hwms) == ([0, 0, 0], [4, 4, 0])
    assert record.ranges == {1: [(2, 2)]}
    assert record.namespaces == [namespace(16, "users")]
    assert decode_payload(encode_record(record)) == [record]


# ------------------------------------------------------------------ from every earlier position


def random_log(rng: random.Random, length: int) -> list[Record]:
    """Records as an engine writes them, transactions out of order and restarts included."""
    state = State(STORE_ID, one_space(PARTITIONS))
    reserved = State(STORE_ID, one_space(PARTITIONS))
    log: list[Record] = []
    late: list[TxRecord] = []
    names = 0
    for time in range(length):
        match rng.choices("tldnxre", (10, 3, 3, 2, 1, 1, 1))[0]:
            case "t" | "l" as kind:
                runs = []
                for partition in rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS)):
                    count = rng.randint(1, 3)
                    first = reserved.counters[partition].reserve(count) + 1
                    runs.append(Run(partition, state.epochs[partition], first, count))
                record: Record = transaction(*runs, time=time)
                if kind == "l":
                    late.append(transaction(*runs, time=time))
                    continue
            case "d" if late:
                record = late.pop(rng.randrange(len(late)))
            case "n":
                record = namespace(FIRST_NAMESPACE + names, f"map {time}")
                names += 1
            case "x" if state.namespaces:
                record = DropNamespaceRecord(id=rng.choice(list(state.namespaces)), time=time)
            case "r" if state.namespaces:
                record = renamed(state, rng.choice(list(state.namespaces)), f"again {time}")
            case _:
                # A restart: what was not written is forgotten, and the epochs rise.
                late.clear()
                gaps = [
                    Run(partition, state.epochs[partition], first, last - first + 1)
                    for partition, counter in enumerate(state.counters)
                    for first, last in counter.missing
                ]
                rollback = RollbackRecord(
                    tx_id=bytes(16), time=time, reason="gap", runs=tuple(gaps)
                )
                log.append(rollback)
                state.apply(len(log) - 1, rollback)
                for mine, theirs in zip(reserved.counters, state.counters, strict=True):
                    theirs.finalize()
                    mine.reset()
                    mine.set(theirs.lwm)
                record = state.next_epochs(time)
        state.apply(len(log), record)
        log.append(record)
    return log


def folded(log: list[Record], state: State, start: int, end: int) -> State:
    for position in range(start, end):
        state.apply(position, log[position])
    return state


@pytest.mark.parametrize("seed", range(20))
def test_replay_from_any_earlier_position_gives_the_same_state(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, 40)
    whole = folded(log, State(STORE_ID, one_space(PARTITIONS)), 0, len(log))
    for _ in range(12):
        checkpoint = rng.randint(0, len(log))
        at = folded(log, State(STORE_ID, one_space(PARTITIONS)), 0, checkpoint)
        marks = marks_of(at, checkpoint)
        # A checkpoint of several transactions crashed: some partitions are ahead of the store.
        behind = rng.randint(0, checkpoint)
        earlier = folded(log, State(STORE_ID, one_space(PARTITIONS)), 0, behind)
        store = earlier.mark(behind)
        for partition in rng.sample(range(PARTITIONS), rng.randint(0, PARTITIONS)):
            marks[partition] = marks_of(earlier, behind)[partition]
        state = State.from_marks(STORE_ID, one_space(PARTITIONS), store, marks)
        assert state.position == behind
        start = rng.randint(0, behind)
        assert shape(folded(log, state, start, len(log))) == shape(whole)


@pytest.mark.parametrize("seed", range(10))
def test_every_update_is_taken_over_exactly_once(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, 40)
    checkpoint = rng.randint(0, len(log))
    at = folded(log, State(STORE_ID, one_space(PARTITIONS)), 0, checkpoint)
    marks, store = marks_of(at, checkpoint), at.mark(checkpoint)
    state = State.from_marks(STORE_ID, one_space(PARTITIONS), store, marks)
    taken = [
        (position, run)
        for position in range(len(log))
        for run in runs_of(state.apply(position, log[position]))
    ]
    assert taken == [
        (position, run)
        for position in range(checkpoint, len(log))
        for record in [log[position]]
        if isinstance(record, TxRecord)
        for run in record.runs
    ]


# ------------------------------------------------------------------ interrupts

BEFORE: list[Record] = [
    namespace(20, "users"),
    namespace(21, HIDDEN + "load"),
    transaction(Run(1, 1, 1, 2)),
    EpochRecord(time=2, first_partition=0, epochs=[2, 2, 2], starts=[1, 3, 1]),
]
RECORDS: list[Record] = [
    namespace(22, "new"),
    DropNamespaceRecord(id=20, time=3),
    EpochRecord(time=4, first_partition=0, epochs=[3, 3, 3], starts=[1, 3, 1]),
    RollbackRecord(tx_id=bytes(16), time=5, reason="gap", runs=(Run(1, 2, 4, 2),)),
    IngestRecord(time=6, namespace=21, load=bytes(16), runs=(Run(0, 2, 1, 3),), digests=(b"",)),
    transaction(Run(1, 2, 3, 1), Run(2, 2, 1, 2), time=7),
]


def grown() -> State:
    state = State(STORE_ID, one_space(PARTITIONS))
    for record in BEFORE:
        state.apply(0, record)
    return state


def everything(state: State) -> dict[str, Any]:
    more = {"dropped": state.dropped, "loaded": state.loaded, "touched": state.touched}
    return shape(state) | more


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_that_was_cut_short_anywhere_may_be_applied_again(record: Record) -> None:
    # A drop left rows that belonged to no map.
    counting, wanted = Tracer(), grown()
    counting.run(partial(wanted.apply, 0, record))
    for line, times in counting.lines.items():
        for passed in range(times):
            state, tracer = grown(), Tracer((line, passed))
            with pytest.raises(Interrupt):
                tracer.run(partial(state.apply, 0, record))
            state.apply(0, record)
            assert everything(state) == everything(wanted), tracer.where
