"""What a data file may hold, one small example of each, whose bytes never change in the format."""

from __future__ import annotations

from support.golden_records import STOCK, TIME
from tidelog.checkpoints.copies import CopyState
from tidelog.checkpoints.marks import PartitionMark, StoreMark
from tidelog.engine.commit.outcomes import Kind, OutcomeEntry, encode_outcome
from tidelog.engine.data.stored import checked, pack_prefix, stored_value
from tidelog.tx.counter import PartitionUpdateCounter

FULL_KEY = pack_prefix(3, 16) + b"apples"
COUNTER = PartitionUpdateCounter(8, [(9, 2)])
PARTITION = PartitionMark(
    position=4096,
    written=8192,
    counter=COUNTER.to_bytes(),
    epochs=((1, 1), (2, 10)),
    count=1,
    digest=int.from_bytes(bytes(range(25)), "little"),
    state=CopyState.MOVING,
    admission=9,
    sealed=2,
    pending=1,
    tombstones=1,
    swept=FULL_KEY,
    counts={16: 1},
)
STORE = StoreMark(
    store_id=b"store id,16 byte",
    position=4096,
    time=TIME,
    namespaces=(STOCK,),
    next_namespace=18,
    dropped=(17,),
)
OUTCOME = OutcomeEntry(Kind.COMMITTED, TIME, 2, ((3, 9, 1),))


def pair(value: bytes | None, number: int) -> bytes:
    """A full key and what is stored under it, joined."""
    return FULL_KEY + checked([FULL_KEY], [stored_value(value, 1, number, TIME)])[0]


def golden() -> dict[str, bytes]:
    """The bytes by name."""
    return {
        "PAIR": pair(b"12", 9),
        "TOMBSTONE": pair(None, 10),
        "COUNTER": COUNTER.to_bytes(),
        "PARTITION": PARTITION.to_bytes(),
        "STORE": STORE.to_bytes(),
        "OUTCOME": encode_outcome(OUTCOME),
    }
