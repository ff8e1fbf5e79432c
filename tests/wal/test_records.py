from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import assume, given, strategies as st

from tidelog.affinity.errors import FormatVersionError
from tidelog.affinity.partitions import Space
from tidelog.wal.records import (
    MAY_BE_IGNORED,
    RECORD_FORMS,
    RECORD_OVERHEAD,
    AdmitRecord,
    CheckpointRecord,
    ClearRecord,
    Closed,
    Columns,
    CommitRecord,
    Committed,
    CommitUptoRecord,
    DropNamespaceRecord,
    EpochRecord,
    IdleRecord,
    IngestRecord,
    NamespaceRecord,
    Opened,
    OpenRecord,
    OutcomesRecord,
    Participant,
    Pending,
    PrepareRecord,
    Record,
    RecordType,
    RollbackRecord,
    Run,
    Settled,
    SettledOutcome,
    SettleRecord,
    StateRecord,
    Supplied,
    SuppliedRecord,
    TxRecord,
    UndecodableRecordError,
    UnknownRecord,
    Upto,
    corrupt_record,
    decode_payload,
    decode_record,
    encode_record,
    pack_record_header,
    put_encoder,
    split_records,
)

U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
COUNTERS = st.integers(0, 2**63 - 1)
IDS = st.binary(min_size=16, max_size=16)
RUNS = st.builds(Run, U32, st.integers(1, 2**32), COUNTERS, st.integers(1, 3))
NAMESPACES = st.builds(
    NamespaceRecord,
    id=U32,
    name=st.text(),
    key_codec=st.text(),
    key_version=U32,
    value_codec=st.text(),
    value_version=U32,
    before_images=st.booleans(),
    space=U32,
)
KINDS = [row.kind for row in RECORD_FORMS]


@st.composite
def transactions(draw: st.DrawFn) -> TxRecord:
    runs = draw(st.lists(RUNS, min_size=1, max_size=4))
    count = sum(run.count for run in runs)
    return TxRecord(
        tx_id=draw(IDS),
        time=draw(I64),
        runs=tuple(runs),
        namespaces=draw(U32 | st.lists(U32, min_size=count, max_size=count)),
        keys=draw(st.lists(st.binary(), min_size=count, max_size=count)),
        values=draw(st.lists(st.none() | st.binary(), min_size=count, max_size=count)),
        details=draw(st.dictionaries(st.text(), I64 | st.text(), max_size=2)),
    )


@st.composite
def states(draw: st.DrawFn) -> StateRecord:
    partitions = draw(st.integers(0, 4))
    columns = st.lists(COUNTERS, min_size=partitions, max_size=partitions)
    ranges = st.lists(st.tuples(COUNTERS, COUNTERS), min_size=1)
    return StateRecord(
        time=draw(I64),
        namespaces=draw(st.lists(NAMESPACES, max_size=2)),
        epochs=draw(columns),
        lwms=draw(columns),
        hwms=draw(columns),
        ranges=draw(st.dictionaries(U32, ranges, max_size=2)),
        epoch_tables=draw(st.dictionaries(U32, ranges.map(tuple), max_size=2)),
        pending=tuple(draw(st.lists(st.builds(Pending, IDS, U32, RUNS), max_size=2))),
        spaces=tuple(draw(spaces(partitions))),
    )


@st.composite
def spaces(draw: st.DrawFn, partitions: int) -> list[Space]:
    """Spaces that so many partitions may be divided into, or none."""
    borders = sorted(draw(st.sets(st.integers(1, max(partitions, 1)), max_size=2)) | {partitions})
    found = [
        Space(first, end - first, draw(U32))
        for first, end in pairwise([0, *borders])
        if end <= partitions
    ]
    return found if partitions and draw(st.booleans()) else []


@st.composite
def epochs(draw: st.DrawFn) -> EpochRecord:
    numbers = draw(st.lists(COUNTERS))
    return EpochRecord(
        time=draw(I64), first_partition=draw(U32), epochs=numbers, starts=numbers[::-1]
    )


@st.composite
def ingests(draw: st.DrawFn) -> IngestRecord:
    runs = draw(st.lists(RUNS, max_size=3))
    digest = st.binary(min_size=25, max_size=25)
    return IngestRecord(
        time=draw(I64),
        namespace=draw(U32),
        load=draw(IDS),
        runs=tuple(runs),
        digests=tuple(draw(st.lists(digest, min_size=len(runs), max_size=len(runs)))),
    )


CLOSED = st.lists(st.builds(Closed, COUNTERS, COUNTERS, U32, st.text()), max_size=2).map(tuple)


def columns(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """Namespaces, keys and values of so many updates."""
    return {
        "namespaces": draw(U32 | st.lists(U32, min_size=count, max_size=count)),
        "keys": draw(st.lists(st.binary(), min_size=count, max_size=count)),
        "values": draw(st.lists(st.none() | st.binary(), min_size=count, max_size=count)),
    }


@st.composite
def prepares(draw: st.DrawFn) -> PrepareRecord:
    run = draw(RUNS)
    own = Participant(run.partition, run.epoch, run.count)
    others = draw(st.lists(st.builds(Participant, U32, U32, U32), max_size=2))
    locks = st.none() | st.lists(st.tuples(U32, st.binary()), max_size=2)
    return PrepareRecord(
        tx_id=draw(IDS),
        attempt=draw(U32),
        near=(draw(IDS), draw(U32)),
        time=draw(I64),
        home=draw(U32),
        participants=(own, *others),
        run=run,
        locks=draw(locks),
        details=draw(st.dictionaries(st.text(), I64 | st.text(), max_size=2)),
        **columns(draw, run.count),
    )


@st.composite
def settled(draw: st.DrawFn) -> Settled:
    run = draw(RUNS)
    outcome = draw(st.sampled_from(SettledOutcome))
    given = Columns(**columns(draw, run.count)) if draw(st.booleans()) else None
    return Settled(draw(IDS), draw(U32), run, outcome, draw(I64), given)


@st.composite
def supplied(draw: st.DrawFn) -> Supplied:
    run = draw(RUNS)
    return Supplied(draw(IDS), draw(U32), run, draw(I64), Columns(**columns(draw, run.count)))


@st.composite
def commits(draw: st.DrawFn) -> CommitRecord:
    runs = draw(st.lists(RUNS, min_size=1, max_size=3))
    applied = draw(st.lists(st.sampled_from([run.partition for run in runs]), unique=True))
    return CommitRecord(
        tx_id=draw(IDS),
        attempt=draw(U32),
        time=draw(I64),
        participants=tuple(runs),
        applied=tuple(applied),
    )


@st.composite
def committed(draw: st.DrawFn) -> Committed:
    participants = draw(st.lists(st.builds(Participant, U32, U32, U32), max_size=3))
    near = draw(IDS), draw(U32)
    return Committed(draw(IDS), draw(U32), near, draw(COUNTERS), draw(RUNS), tuple(participants))


PAIRS = st.lists(st.tuples(COUNTERS, COUNTERS), min_size=1, max_size=3).map(tuple)
COPIES: st.SearchStrategy[Record] = st.one_of(
    prepares(),
    commits(),
    st.builds(
        CommitUptoRecord,
        rows=st.lists(st.builds(Upto, U32, U32, COUNTERS), max_size=3).map(tuple),
    ),
    st.builds(
        SettleRecord,
        partition=U32,
        epoch=U32,
        start=COUNTERS,
        transactions=st.lists(settled(), max_size=2).map(tuple),
        closed=CLOSED,
    ),
    st.builds(OpenRecord, rows=st.lists(st.builds(Opened, U32, U32), max_size=3).map(tuple)),
    st.builds(
        SuppliedRecord,
        partition=U32,
        admission=U32,
        source=IDS,
        transactions=st.lists(supplied(), max_size=2).map(tuple),
        closed=CLOSED,
    ),
    st.builds(ClearRecord, partition=U32, admission=U32, reason=st.text()),
    st.builds(
        AdmitRecord,
        partition=U32,
        admission=U32,
        epochs=PAIRS,
        lwm=COUNTERS,
        ranges=st.just(()) | PAIRS,
        hwm=COUNTERS,
        dropped=st.lists(IDS, max_size=2).map(tuple),
    ),
    st.builds(
        OutcomesRecord,
        partition=U32,
        committed=st.lists(committed(), max_size=2).map(tuple),
        forgotten=st.lists(IDS, max_size=2).map(tuple),
    ),
)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    COPIES,
    transactions(),
    states(),
    epochs(),
    ingests(),
    NAMESPACES,
    st.builds(
        RollbackRecord,
        tx_id=IDS,
        time=I64,
        reason=st.text(),
        runs=st.lists(RUNS, max_size=3).map(tuple),
        attempt=U32,
    ),
    st.builds(DropNamespaceRecord, id=U32, time=I64),
    st.builds(CheckpointRecord, position=COUNTERS, time=I64),
    st.just(IdleRecord()),
    st.builds(UnknownRecord, type=st.integers(max(RecordType) + 1, 255), body=st.binary()),
)


@pytest.mark.slow
@given(st.lists(RECORDS, max_size=4))
def test_records_come_back_as_they_were(records: list[Record]) -> None:
    assert decode_payload(b"".join(map(encode_record, records))) == records


@pytest.mark.slow
@given(RECORDS.filter(lambda record: not isinstance(record, UnknownRecord)), I64)
def test_fields_that_a_later_version_appends_are_ignored(record: Record, extra: int) -> None:
    ((kind, flags, body),) = split_records(encode_record(record))
    fields = msgpack.unpackb(body, strict_map_key=False)
    if isinstance(record, SettleRecord) and not record.epochs:
        fields.append([])  # which is left out as long as it is empty
    longer = msgpack.packb([*fields, extra])
    assert decode_record(kind, flags, longer) == record


def expect_record_or_refusal(kind: int, body: bytes) -> None:
    """What decodes is a record that is written as it is read; everything else is refused."""
    try:
        record = decode_record(kind, 0, body)
    except UndecodableRecordError:
        return
    data = encode_record(record)
    assert next(iter(split_records(data)))[0] == kind
    assert repr(decode_payload(data)) == repr([record])


@given(st.sampled_from(KINDS), st.binary())
def test_garbage_is_refused_or_a_record(kind: int, body: bytes) -> None:
    expect_record_or_refusal(kind, body)


@given(st.sampled_from(KINDS), st.binary(max_size=3))
def test_garbage_that_is_too_short_for_any_record_is_refused(kind: int, body: bytes) -> None:
    assume(kind != RecordType.IDLE)
    with pytest.raises(UndecodableRecordError):
        decode_record(kind, 0, body)


ANYTHING = st.recursive(
    st.none() | st.booleans() | I64 | st.floats() | st.text(max_size=3) | st.binary(max_size=17),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(I64 | st.text(), inner, max_size=2),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.sampled_from(KINDS), st.lists(ANYTHING, max_size=9) | ANYTHING)
def test_other_msgpack_is_refused_or_a_record(kind: int, body: object) -> None:
    expect_record_or_refusal(kind, msgpack.packb(body))


@given(st.binary())
def test_garbage_payloads_are_refused_or_records(payload: bytes) -> None:
    try:
        records = decode_payload(payload)
    except (UndecodableRecordError, FormatVersionError):
        assert payload
        return
    assert len(records) == len(list(split_records(payload)))


TX = TxRecord(
    tx_id=bytes(16), time=1, runs=(Run(3, 1, 9, 2),), namespaces=16, keys=[b"a", b"b"],
    values=[b"x", None],
)  # fmt: skip


def rebuilt(**changes: object) -> bytes:
    fields = ["tx_id", "time", "runs", "namespaces", "keys", "values", "details"]
    values: list[object] = [bytes(16), 1, [3, 1, 9, 2], 16, [b"a", b"b"], [b"x", None], None]
    for name, value in changes.items():
        values[fields.index(name)] = value
    packed: bytes = msgpack.packb(values)
    return packed


PREPARE = PrepareRecord(
    tx_id=bytes(16), attempt=1, near=(b"m" * 16, 7), time=5, home=3,
    participants=(Participant(3, 1, 1), Participant(4, 2, 5)), run=Run(3, 1, 9, 1), namespaces=16,
    keys=[b"a"], values=[b"x"], locks=[(16, b"read")],
)  # fmt: skip


def prepared(**changes: object) -> list[object]:
    fields = list(PREPARE.fields())
    fields[5] = list(PREPARE.fields()[5])  # type: ignore[call-overload]  # a flat list
    for name, value in changes.items():
        fields[PrepareRecord._fields.index(name)] = value
    return fields


def outcome(**changes: object) -> list[object]:
    names = ["tx_id", "attempt", "near", "time", "run", "participants"]
    values: list[object] = [bytes(16), 1, [b"m" * 16, 7], 5, [3, 1, 9, 1], [3, 1, 1, 4, 2, 5]]
    for name, value in changes.items():
        values[names.index(name)] = value
    return values


def test_the_outcome_is_one_that_a_later_test_breaks() -> None:
    body = msgpack.packb((3, [outcome()], [bytes(16)]))
    run, participants = PREPARE.run, PREPARE.participants
    one = Committed(bytes(16), 1, (b"m" * 16, 7), 5, run, participants)
    assert decode_record(RecordType.OUTCOMES, 0, body) == OutcomesRecord(
        partition=3, committed=(one,), forgotten=(bytes(16),)
    )


def test_the_rebuilt_transaction_is_the_one_that_the_next_test_breaks() -> None:
    assert decode_record(RecordType.TX, 0, rebuilt()) == TX


@pytest.mark.parametrize(
    "changes",
    [
        {"tx_id": bytes(15)},
        {"tx_id": "sixteen letters!"},
        {"runs": [3, 1, 9]},
        {"runs": [3, 1, 9, 3]},
        {"runs": [3, 1, -9, 2]},
        {"runs": [], "keys": [], "values": []},
        {"keys": [b"a"]},
        {"values": [b"x"]},
        {"namespaces": [16]},
        {"details": [1]},
        {"details": 5},
    ],
)
def test_a_transaction_that_does_not_add_up_is_undecodable(changes: dict[str, object]) -> None:
    with pytest.raises(UndecodableRecordError, match="type 1"):
        decode_record(RecordType.TX, 0, rebuilt(**changes))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (RecordType.ROLLBACK, (b"short", 1, "why", [], 1)),
        (RecordType.PREPARE, prepared(tx_id=b"short")),
        (RecordType.PREPARE, prepared(near=[bytes(16)])),
        (RecordType.PREPARE, prepared(participants=[4, 1, 1])),
        (RecordType.PREPARE, prepared(participants=[3, 1])),
        (RecordType.PREPARE, prepared(run=[3, 1, 9])),
        (RecordType.PREPARE, prepared(run=[3, 1, 9, 2])),
        (RecordType.PREPARE, prepared(keys=[])),
        (RecordType.PREPARE, prepared(locks=[16])),
        (RecordType.PREPARE, prepared(details=[1])),
        (RecordType.COMMIT, (bytes(16), 1, 5, [3, 1, 9, 1], [4])),
        (RecordType.COMMIT, (bytes(16), -1, 5, [3, 1, 9, 1], [3])),
        (RecordType.COMMIT, (bytes(16), 1, 5, [3, 1, 9], [3])),
        (RecordType.COMMIT_UPTO, ([3, 1],)),
        (RecordType.OPEN, ([3],)),
        (RecordType.SETTLE, (3, 2, 10, [[bytes(16), 1, [3, 1, 9, 1], 4, 0, None]], [])),
        (RecordType.SETTLE, (3, 2, 10, [[bytes(16), 1, [3, 1, 9, 1], 1, 5, [16, [], []]]], [])),
        (RecordType.SETTLE, (3, 2, 10, [], [[1, 9, 1]])),
        (RecordType.SETTLE, (3, 2, 10, [], [[1, 9, 1, 5]])),
        (RecordType.SETTLE, (-3, 2, 10, [], [])),
        (RecordType.SUPPLIED, (3, 7, bytes(16), [[bytes(16), 1, [3, 1, 9, 1], 5, None]], [])),
        (RecordType.SUPPLIED, (3, 7, b"short", [], [])),
        (RecordType.CLEAR, (3, 7, 5)),
        (RecordType.ADMIT, (3, 7, [], 0, [], 0, [])),
        (RecordType.ADMIT, (3, 7, [1, 1], 0, [5], 0, [])),
        (RecordType.ADMIT, (3, 7, [1, 1], -1, [], 0, [])),
        (RecordType.ADMIT, (3, 7, [1, 1], 0, [], 0, [b"short"])),
        (RecordType.OUTCOMES, (3, [outcome()])),
        (RecordType.OUTCOMES, (-3, [outcome()], [])),
        (RecordType.OUTCOMES, (3, [outcome()[:5]], [])),
        (RecordType.OUTCOMES, (3, [outcome(tx_id=b"short")], [])),
        (RecordType.OUTCOMES, (3, [outcome(attempt=-1)], [])),
        (RecordType.OUTCOMES, (3, [outcome(near=[bytes(16)])], [])),
        (RecordType.OUTCOMES, (3, [outcome(near=[b"short", 7])], [])),
        (RecordType.OUTCOMES, (3, [outcome(time=-1)], [])),
        (RecordType.OUTCOMES, (3, [outcome(run=[3, 1, 9])], [])),
        (RecordType.OUTCOMES, (3, [outcome(participants=[3, 1])], [])),
        (RecordType.OUTCOMES, (3, [outcome()], [b"short"])),
        (RecordType.NAMESPACE, ("id", "name", "k", 1, "v", 1, False, 0)),
        (RecordType.NAMESPACE, (1, 2, "k", 1, "v", 1, False, 0)),
        (RecordType.EPOCH, (1, 0, [1, 2], [1])),
        (RecordType.INGEST, (1, 16, b"short", [], [])),
        (RecordType.INGEST, (1, "id", bytes(16), [], [])),
        (RecordType.INGEST, (1, 16, bytes(16), [0, 1, 1], [bytes(25)])),
        (RecordType.INGEST, (1, 16, bytes(16), [0, 1, 1, 5], [])),
        (RecordType.INGEST, (1, 16, bytes(16), [0, 1, 1, 5], [bytes(24)])),
        (RecordType.INGEST, (1, 16, bytes(16), [0, 1, 1, 5], [bytes(25), bytes(25)])),
        (RecordType.INGEST, (1, 16, bytes(16), [0, 1, 1.0, 5], [bytes(25)])),
        (RecordType.STATE, (1, [], [1], [1, 2], [1], {}, {}, [], [])),
        (RecordType.STATE, (1, [], [1], [1], [1, 2], {}, {}, [], [])),
        (RecordType.STATE, (1, [], [1], [1], [1], [], {}, [], [])),
        (RecordType.STATE, (1, [], [1], [1], [1], {0: [1, 2, 3]}, {}, [], [])),
        (RecordType.STATE, (1, [], [1], [1], [1], {}, {0: [1]}, [], [])),
        (RecordType.STATE, (1, [], [1], [1], [1], {}, {}, [[bytes(16), 1, [0]]], [])),
        (RecordType.STATE, (1, [], [1], [1], [1], {}, {}, [], [1])),
        (RecordType.STATE, (1, [], [1], [1], [1], {}, {}, [], [0, 2, 0])),
        (RecordType.STATE, (1, [], [1], [1], [1], {}, {}, [], [1, 1, 0])),
        (RecordType.CHECKPOINT, (1,)),
        (RecordType.DROP_NAMESPACE, 5),
    ],
)
def test_other_records_that_do_not_add_up_are_undecodable(kind: int, body: object) -> None:
    with pytest.raises(UndecodableRecordError):
        decode_record(kind, 0, msgpack.packb(body))


def test_golden_transaction() -> None:
    assert encode_record(TX).hex() == (
        "00000027" "01" "00"
        "97" "c410" + "00" * 16 + "01" "94" "03010902" "10"
        "92" "c40161" "c40162" "92" "c40178" "c0" "c0"
    )  # fmt: skip


def test_golden_ingest_must_be_understood() -> None:
    record = IngestRecord(
        time=1, namespace=16, load=bytes(16), runs=(Run(3, 1, 9, 2),), digests=(b"\x07" * 25,)
    )
    assert encode_record(record).hex() == (
        "00000036" "0e" "00"
        "95" "01" "10" "c410" + "00" * 16 + "94" "03010902" "91" "c419" + "07" * 25
    )  # fmt: skip


def test_golden_idle_and_checkpoint_may_be_ignored() -> None:
    assert encode_record(IdleRecord()).hex() == "000000011001" + "90"
    assert encode_record(CheckpointRecord(position=5, time=6)).hex() == "000000030901" + "920506"


@given(
    st.binary(min_size=8, max_size=8),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**63 - 1),
    st.tuples(U32, U32, COUNTERS, U32),
    st.binary(max_size=480),
    st.binary(max_size=300),
)
def test_a_put_encoded_the_short_way_is_the_same_record(
    prefix: bytes,
    number: int,
    time: int,
    place: tuple[int, int, int, int],
    key: bytes,
    value: bytes,
) -> None:
    partition, epoch, counter, namespace = place
    data = put_encoder(prefix)(number, time, partition, epoch, counter, namespace, key, value)
    assert decode_payload(data) == [
        TxRecord(
            tx_id=prefix + number.to_bytes(8, "big"),
            time=time,
            runs=(Run(partition, epoch, counter, 1),),
            namespaces=namespace,
            keys=[key],
            values=[value],
        )
    ]


def test_updates_follow_the_runs() -> None:
    record = TxRecord(
        tx_id=bytes(16),
        time=1,
        runs=(Run(0, 1, 5, 2), Run(2, 3, 8, 1)),
        namespaces=[16, 17, 16],
        keys=[b"a", b"b", b"c"],
        values=[b"x", None, b"z"],
        details={"tag": "nightly"},
    )
    assert list(record.updates()) == [
        (0, 1, 5, 16, b"a", b"x"),
        (0, 1, 6, 17, b"b", None),
        (2, 3, 8, 16, b"c", b"z"),
    ]
    assert [update[3] for update in TX.updates()] == [16, 16]
    assert (record.tag, TX.tag) == ("nightly", None)


def test_an_unknown_record_is_kept_where_it_may_be_ignored() -> None:
    data = pack_record_header(3, 99, MAY_BE_IGNORED) + b"abc"
    assert decode_payload(data) == [UnknownRecord(type=99, body=b"abc")]


def test_an_unknown_record_without_that_bit_refuses_the_log() -> None:
    with pytest.raises(FormatVersionError, match="type 99") as caught:
        decode_payload(pack_record_header(3, 99, 0) + b"abc")
    assert (caught.value.found, caught.value.supported) == (99, RecordType.OUTCOMES)


def test_each_number_has_one_row_but_that_of_the_seal() -> None:
    assert (
        len(RECORD_FORMS)
        == len({row.kind for row in RECORD_FORMS})
        == len({row.record for row in RECORD_FORMS})
    )
    assert set(RecordType) - {row.kind for row in RECORD_FORMS} == {RecordType.SEAL}
    with pytest.raises(FormatVersionError, match="type 18"):
        decode_payload(pack_record_header(0, RecordType.SEAL, 0))


def test_lengths_that_do_not_add_up_are_undecodable() -> None:
    data = encode_record(TX)
    for length in range(1, len(data)):
        with pytest.raises(UndecodableRecordError, match="left"):
            list(split_records(data[:length]))
    with pytest.raises(UndecodableRecordError, match="too few"):
        list(split_records(data + bytes(RECORD_OVERHEAD - 1)))
    huge = pack_record_header(0xFFFFFFFF, 1, 0)
    with pytest.raises(UndecodableRecordError, match="4294967295 bytes, of which 0 are left"):
        list(split_records(huge))


def test_what_users_see_of_an_undecodable_record() -> None:
    error = corrupt_record(UndecodableRecordError("nonsense"), 4, 128)
    assert (error.kind, error.segment, error.offset) == ("damaged", 4, 128)
    assert "segment 4, offset 128: a frame with a valid CRC holds nonsense" in str(error)
