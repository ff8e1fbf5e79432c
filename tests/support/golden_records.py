"""One small record of each type, whose bytes never change while the format is the same."""

from __future__ import annotations

from tidelog.affinity.partitions import Space
from tidelog.wal.records import (
    RECORD_FORMS,
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
    SealRecord,
    Settled,
    SettledOutcome,
    SettleRecord,
    StateRecord,
    Supplied,
    SuppliedRecord,
    TxRecord,
    Upto,
    encode_record,
    encode_seal,
)

TIME = 1_700_000_000_000_000
MEMBER = b"member, 16 bytes"
STOCK = NamespaceRecord(
    id=16, name="stock", key_codec="str", key_version=1, value_codec="json", value_version=1
)


def tx_id(number: int) -> bytes:
    return b"boot-one" + number.to_bytes(8, "big")


RECORDS: tuple[Record, ...] = (
    TxRecord(
        tx_id=tx_id(1),
        time=TIME,
        runs=(Run(0, 1, 5, 1), Run(3, 1, 9, 2)),
        namespaces=16,
        keys=[b"a", b"b", b"c"],
        values=[b"x", None, b"z"],
        details={"tag": "t", "user_id": True},
    ),
    PrepareRecord(
        tx_id=tx_id(2),
        attempt=1,
        near=(MEMBER, 7),
        time=TIME,
        home=0,
        participants=(Participant(3, 1, 1), Participant(4, 2, 5)),
        run=Run(3, 1, 11, 1),
        namespaces=16,
        keys=[b"a"],
        values=[b"x"],
        locks=[(16, b"read")],
    ),
    CommitRecord(
        tx_id=tx_id(2),
        attempt=1,
        time=TIME,
        participants=(Run(3, 1, 11, 1), Run(4, 2, 20, 5)),
        applied=(3,),
    ),
    RollbackRecord(tx_id=tx_id(3), time=TIME, reason="gap", runs=(Run(3, 1, 12, 2),), attempt=2),
    SettleRecord(
        partition=3,
        epoch=2,
        start=16,
        transactions=(
            Settled(tx_id(4), 1, Run(3, 1, 14, 1), SettledOutcome.ROLLED_BACK, 0, None),
            Settled(
                tx_id(5), 1, Run(3, 1, 15, 1), SettledOutcome.COMMITTED, TIME,
                Columns(16, [b"k"], [None]),
            ),
        ),
        closed=(Closed(1, 13, 1, "gap"),),
    ),
    OpenRecord(rows=(Opened(3, 2), Opened(4, 3))),
    SuppliedRecord(
        partition=3,
        admission=9,
        source=MEMBER,
        transactions=(
            Supplied(tx_id(5), 1, Run(3, 1, 15, 1), TIME, Columns(16, [b"k"], [b"v"])),
        ),
        closed=(Closed(1, 14, 1, "told"),),
    ),
    ClearRecord(partition=3, admission=9, reason="full"),
    CheckpointRecord(position=4096, time=TIME),
    StateRecord(
        time=TIME,
        namespaces=[STOCK],
        epochs=[1, 2],
        lwms=[5, 9],
        hwms=[8, 9],
        ranges={0: [(6, 2)]},
        epoch_tables={1: ((1, 1), (2, 7))},
        pending=(Pending(tx_id(2), 1, Run(0, 1, 6, 1)),),
        spaces=(Space(0, 2, 1),),
    ),
    STOCK,
    DropNamespaceRecord(id=16, time=TIME),
    EpochRecord(time=TIME, first_partition=0, epochs=[2, 2], starts=[6, 1]),
    IngestRecord(
        time=TIME,
        namespace=17,
        load=b"load of 16 bytes",
        runs=(Run(3, 1, 17, 2),),
        digests=(bytes(range(25)),),
    ),
    CommitUptoRecord(rows=(Upto(3, 1, 11),)),
    IdleRecord(),
    AdmitRecord(
        partition=3,
        admission=9,
        epochs=((1, 1), (2, 16)),
        lwm=12,
        ranges=((13, 2),),
        hwm=18,
        dropped=(tx_id(2),),
    ),
    OutcomesRecord(
        partition=3,
        committed=(
            Committed(
                tx_id(2), 1, (MEMBER, 7), TIME, Run(3, 1, 11, 1),
                (Participant(3, 1, 1), Participant(4, 2, 5)),
            ),
        ),
        forgotten=(tx_id(4),),
    ),
)  # fmt: skip
SEAL = SealRecord(number=2, first_position=4096, end=4200)

OF_COPIES = frozenset(
    (
        RecordType.PREPARE, RecordType.COMMIT, RecordType.SETTLE, RecordType.OPEN,
        RecordType.SUPPLIED, RecordType.CLEAR, RecordType.COMMIT_UPTO, RecordType.ADMIT,
        RecordType.OUTCOMES,
    )
)  # fmt: skip
"""What only the copies of a cluster's partitions log: no store of its own writes any."""

_KINDS = {row.record: row.kind for row in RECORD_FORMS}


def examples() -> dict[RecordType, Record]:
    """The records by their types."""
    return {_KINDS[type(record)]: record for record in RECORDS}


def golden() -> dict[RecordType, bytes]:
    """The bytes of one record of each type, headers included."""
    found = {kind: encode_record(record) for kind, record in examples().items()}
    return {**found, RecordType.SEAL: encode_seal(SEAL)}
