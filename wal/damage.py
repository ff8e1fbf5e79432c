"""What a damaged or missing stretch of a log held, as far as its neighbours tell.

Owns the fold that gives the highest update number before the stretch and the lowest behind it.

Invariants:

- Nothing here is trusted: the results are for people, and no data is taken from a damaged frame.
- A range is what may be missing at most: numbers can be reserved and never used.

Left out: finding the frames around the stretch (``reader``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..affinity.errors import FormatVersionError
from .records import (
    EpochRecord,
    IngestRecord,
    Record,
    RollbackRecord,
    StateRecord,
    TxRecord,
    UndecodableRecordError,
    decode_record,
    split_records,
)
from .tail import LostRange


def readable_records(payload: bytes) -> Iterator[Record]:
    """Yield the records at the start of a payload up to the first one that does not decode."""
    try:
        for parts in split_records(payload):
            yield decode_record(*parts)
    except (UndecodableRecordError, FormatVersionError):
        return


def lost_ranges(before: Iterable[bytes], after: Iterable[bytes]) -> tuple[LostRange, ...]:
    """Return the update numbers between payloads before a stretch and payloads behind it.

    ``before`` has to begin with a STATE record for partitions without later updates to be known.
    """
    known = _highest(before)
    lost = []
    for partition, last in sorted(_lowest(after).items()):
        first = known.get(partition, 0) + 1
        if first <= last and known:
            lost.append(LostRange(partition, first, last))
    return tuple(lost)


def transactions_in(payload: bytes) -> tuple[bytes, ...]:
    """Return the ids of the transactions that can still be read in a damaged payload."""
    records = readable_records(payload)
    return tuple(record.tx_id for record in records if isinstance(record, TxRecord))


def _highest(payloads: Iterable[bytes]) -> dict[int, int]:
    known: dict[int, int] = {}
    for payload in payloads:
        for record in readable_records(payload):
            match record:
                case StateRecord():
                    known = dict(enumerate(record.hwms))
                case TxRecord() | RollbackRecord() | IngestRecord():
                    for run in record.runs:
                        last = run.first + run.count - 1
                        known[run.partition] = max(last, known.get(run.partition, 0))
                case _:
                    pass
    return known


def _lowest(payloads: Iterable[bytes]) -> dict[int, int]:
    """The highest number below those that the payloads show, by partition; ends at a STATE."""
    below: dict[int, int] = {}
    for payload in payloads:
        for record in readable_records(payload):
            match record:
                case StateRecord():
                    for partition, hwm in enumerate(record.hwms):
                        below.setdefault(partition, hwm)
                    return below
                case TxRecord() | RollbackRecord() | IngestRecord():
                    for run in record.runs:
                        below.setdefault(run.partition, run.first - 1)
                case EpochRecord():
                    for index, start in enumerate(record.starts):
                        below.setdefault(record.first_partition + index, start - 1)
                case _:
                    pass
    return below
