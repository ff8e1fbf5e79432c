"""What ``wal dump`` prints of the records that the copies of a cluster's partitions log.

Left out: transactions and the records that every store has (``records``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...wal.records import (
    AdmitRecord,
    ClearRecord,
    Closed,
    CommitRecord,
    CommitUptoRecord,
    OpenRecord,
    OutcomesRecord,
    PrepareRecord,
    Run,
    SettleRecord,
    SuppliedRecord,
)

CopyRecord = (
    PrepareRecord
    | CommitRecord
    | CommitUptoRecord
    | SettleRecord
    | OpenRecord
    | SuppliedRecord
    | ClearRecord
    | AdmitRecord
    | OutcomesRecord
)


def copy_document(record: CopyRecord) -> dict[str, Any]:
    """Return what ``--json`` prints of a record, but for its updates."""
    match record:
        case PrepareRecord():
            member, boot = record.near
            locks = [(namespace, key.hex()) for namespace, key in record.locks or ()]
            return {
                "tx": record.tx_id.hex(),
                "attempt": record.attempt,
                "near": {"member": member.hex(), "boot": boot},
                "home": record.home,
                "participants": [row._asdict() for row in record.participants],
                "run": run_document(record.run),
                "locks": None if record.locks is None else locks,
            }
        case CommitRecord():
            return {
                "tx": record.tx_id.hex(),
                "attempt": record.attempt,
                "participants": [run_document(run) for run in record.participants],
                "applied": list(record.applied),
            }
        case CommitUptoRecord() | OpenRecord():
            return {"partitions": [row._asdict() for row in record.rows]}
        case SettleRecord():
            return {
                "partition": record.partition,
                "epoch": record.epoch,
                "start": record.start,
                "transactions": [
                    {
                        "tx": one.tx_id.hex(),
                        "attempt": one.attempt,
                        "run": run_document(one.run),
                        "outcome": one.outcome.name.lower(),
                    }
                    for one in record.transactions
                ],
                "closed": [one._asdict() for one in record.closed],
                **({"epochs": record.epochs} if record.epochs else {}),
            }
        case SuppliedRecord():
            return {
                "partition": record.partition,
                "admission": record.admission,
                "source": record.source.hex(),
                "transactions": [
                    {
                        "tx": one.tx_id.hex(),
                        "attempt": one.attempt,
                        "run": run_document(one.run),
                    }
                    for one in record.transactions
                ],
                "closed": [one._asdict() for one in record.closed],
            }
        case ClearRecord():
            return {
                "partition": record.partition,
                "admission": record.admission,
                "reason": record.reason,
            }
        case AdmitRecord():
            return {
                "partition": record.partition,
                "admission": record.admission,
                "epochs": record.epochs,
                "lwm": record.lwm,
                "ranges": record.ranges,
                "hwm": record.hwm,
                "dropped": [tx_id.hex() for tx_id in record.dropped],
            }
        case OutcomesRecord():
            return {
                "partition": record.partition,
                "committed": [
                    {
                        "tx": one.tx_id.hex(),
                        "attempt": one.attempt,
                        "run": run_document(one.run),
                        "participants": [row._asdict() for row in one.participants],
                    }
                    for one in record.committed
                ],
                "forgotten": [tx_id.hex() for tx_id in record.forgotten],
            }


def copy_details(record: CopyRecord) -> Iterator[str]:
    """Yield what people read of a record, behind its place and type."""
    match record:
        case PrepareRecord():
            yield f"{record.tx_id.hex()}  attempt {record.attempt}"
            yield from shown_runs([record.run])
            yield f"with {', '.join(f'p{row.partition}' for row in record.participants)}"
        case CommitRecord():
            yield f"{record.tx_id.hex()}  attempt {record.attempt}"
            yield from shown_runs(record.participants)
            yield f"here {', '.join(f'p{partition}' for partition in record.applied)}"
        case CommitUptoRecord():
            yield from (f"p{row.partition} up to #{row.last}" for row in record.rows)
        case SettleRecord():
            yield f"p{record.partition} epoch {record.epoch} from #{record.start}"
            for one in record.transactions:
                yield f"{one.tx_id.hex()} {one.outcome.name.lower().replace('_', ' ')}"
            yield from _closed(record.closed)
        case OpenRecord():
            yield from (f"p{row.partition} epoch {row.epoch}" for row in record.rows)
        case SuppliedRecord():
            yield f"p{record.partition} admission {record.admission}"
            yield from shown_runs(one.run for one in record.transactions)
            yield from _closed(record.closed)
        case ClearRecord():
            yield f"p{record.partition} admission {record.admission}  {record.reason}"
        case AdmitRecord():
            yield f"p{record.partition} admission {record.admission}"
            yield f"LWM {record.lwm}, {len(record.ranges)} ranges, HWM {record.hwm}"
        case OutcomesRecord():
            yield f"p{record.partition}"
            yield from (f"{one.tx_id.hex()} committed" for one in record.committed)
            yield from (f"{tx_id.hex()} forgotten" for tx_id in record.forgotten)


def run_document(run: Run) -> dict[str, Any]:
    """Return what ``--json`` prints of a run."""
    return run._asdict()


def shown_runs(runs: Iterable[Run]) -> Iterator[str]:
    """Yield runs as people read them."""
    return (f"p{run.partition} #{run.first}+{run.count}" for run in runs)


def _closed(closed: Iterable[Closed]) -> Iterator[str]:
    return (f"closed #{one.first}+{one.count} ({one.reason})" for one in closed)
