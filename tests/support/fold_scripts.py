"""Scripts of records: what a line means, and how a fold of them is shown.

tx A p0 e1 #1 time 5: a=1 b=-           a delete is `b=-`
prepare A p0 e1 #1 with p1: a=1
commit A time 7: p0 e1 #1+1, p1 e1 #4+2; here p0
commit_upto p0 e1 #3
rollback A: p0 e1 #1+2                  numbers that nobody has: `rollback nobody: ...`
settle p0 e2 from #4: A #1+2 e1 rolled_back, B #3+1 e1 committed time 7 x=1; closed e1 #2+1 gap
settle p0 e3 from #4 epochs 1:1 2:3: A #1+2 e1 rolled_back
open p0 e2
clear p0 admission 9
admit p0 admission 9 epochs 1:1 2:4 lwm 3 ranges 5+2 hwm 9
supplied p0 admission 9: C e2 #4+1 time 8 x=1; closed e2 #5+1 gap
outcomes p0: A #1+2 e1 time 7 with p1, B #3+1 e1 time 8 with p1; forgotten C D
epoch p0 e2 from #4
head                                    goes on with the state that a new segment begins with
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.copies import CopyState, numbers_ended
from tidelog.checkpoints.replay import Applied, Cleared, State
from tidelog.wal.records import (
    AdmitRecord,
    ClearRecord,
    Closed,
    Columns,
    CommitRecord,
    Committed,
    CommitUptoRecord,
    EpochRecord,
    Opened,
    OpenRecord,
    OutcomesRecord,
    Participant,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    Settled,
    SettledOutcome,
    SettleRecord,
    StateRecord,
    Supplied,
    SuppliedRecord,
    TxRecord,
    Upto,
    decode_payload,
    encode_record,
)

PARTITIONS = 2
MEMBER = b"m" * 16
NAMESPACE = 16


def id_of(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def name_of(tx_id: bytes) -> str:
    return tx_id.rstrip(b".").decode()


def number(pattern: str, text: str, default: int | None = None) -> int:
    """The number behind a word of a line."""
    found = re.search(pattern + r"(\d+)", text)
    if found is None and default is not None:
        return default
    assert found is not None, f"{pattern!r} is missing: {text}"
    return int(found[1])


def run_of(text: str, count: int | None = None) -> Run:
    found = re.search(r"#(\d+)\+(\d+)", text)
    first, length = (int(found[1]), int(found[2])) if found else (number("#", text), count or 1)
    return Run(number(r"\bp", text, 0), number(r"\be", text, 1), first, length)


def columns_of(text: str) -> Columns:
    pairs = re.findall(r"(\w+)=(\S+)", text)
    return Columns(
        NAMESPACE,
        [key.encode() for key, _ in pairs],
        [None if value == "-" else value.encode() for _, value in pairs],
    )


def closed_of(text: str) -> tuple[Closed, ...]:
    found = re.findall(r"e(\d+) #(\d+)\+(\d+) (\w+)", text)
    return tuple(Closed(int(e), int(first), int(n), reason) for e, first, n, reason in found)


def record_of(line: str) -> Record:
    """The record that a line of a script means."""
    kind, _, rest = line.partition(" ")
    head, _, body = rest.partition(": ")
    tx_id, time = id_of(head.split(" ")[0]), number("time ", rest, 1)
    match kind:
        case "tx":
            columns = columns_of(body)
            return TxRecord(tx_id, time, (run_of(head, len(columns.keys)),), *columns)
        case "prepare":
            columns = columns_of(body)
            run = run_of(head.split(" with")[0], len(columns.keys))
            return PrepareRecord(
                tx_id=tx_id,
                attempt=number("attempt ", rest, 1),
                near=(MEMBER, 1),
                time=time,
                home=run.partition,
                participants=participants_of(run, head),
                run=run,
                namespaces=columns.namespaces,
                keys=columns.keys,
                values=columns.values,
            )
        case "commit":
            runs, _, here = body.partition("; here ")
            return CommitRecord(
                tx_id=tx_id,
                attempt=1,
                time=time,
                participants=tuple(map(run_of, runs.split(", "))),
                applied=tuple(int(p) for p in re.findall(r"p(\d+)", here)),
            )
        case "commit_upto":
            row = Upto(number("p", rest), number("e", rest), number("#", rest))
            return CommitUptoRecord(rows=(row,))
        case "rollback":
            gone = tuple(map(run_of, body.split(", ")))
            if rest.startswith("nobody"):
                tx_id = bytes(16)
            return RollbackRecord(
                tx_id=tx_id,
                time=time,
                reason="told",
                runs=gone,
                attempt=number("attempt ", rest, 1),
            )
        case "settle":
            rows, _, closed = body.partition("; closed ")
            table = re.findall(r"(\d+):(\d+)", head)
            return SettleRecord(
                partition=number("p", head),
                epoch=number("e", head),
                start=number("#", head),
                transactions=tuple(map(settled_of, filter(None, rows.split(", ")))),
                closed=closed_of(closed),
                epochs=tuple((int(epoch), int(start)) for epoch, start in table),
            )
        case "open":
            return OpenRecord(rows=(Opened(number("p", rest), number("e", rest)),))
        case "clear":
            admission = number("admission ", rest)
            return ClearRecord(partition=number("p", rest), admission=admission, reason="full")
        case "admit":
            epochs = re.findall(r"(\d+):(\d+)", rest)
            ranges = re.findall(r"(\d+)\+(\d+)", rest)
            return AdmitRecord(
                partition=number("p", rest),
                admission=number("admission ", rest),
                epochs=tuple((int(epoch), int(start)) for epoch, start in epochs),
                lwm=number("lwm ", rest),
                ranges=tuple((int(start), int(delta)) for start, delta in ranges),
                hwm=number("hwm ", rest),
                dropped=(),
            )
        case "supplied":
            rows, _, closed = body.partition("; closed ")
            return SuppliedRecord(
                partition=number("p", head),
                admission=number("admission ", head),
                source=MEMBER,
                transactions=tuple(
                    supplied_of(row, number("p", head)) for row in filter(None, rows.split(", "))
                ),
                closed=closed_of(closed),
            )
        case "outcomes":
            rows, _, forgotten = body.partition("; forgotten ")
            return OutcomesRecord(
                partition=number("p", head),
                committed=tuple(
                    committed_of(row, number("p", head)) for row in filter(None, rows.split(", "))
                ),
                forgotten=tuple(map(id_of, forgotten.split())),
            )
        case "epoch":
            return EpochRecord(
                time=time,
                first_partition=number("p", rest),
                epochs=[number("e", rest)],
                starts=[number("#", rest)],
            )
    raise AssertionError(line)


def participants_of(run: Run, text: str) -> tuple[Participant, ...]:
    """Who takes part: the partition itself, and those behind the word ``with``."""
    others = re.findall(r"p(\d+)", text.partition("with")[2])
    own = Participant(run.partition, run.epoch, run.count)
    return own, *(Participant(int(partition), 1, 1) for partition in others)


def committed_of(row: str, partition: int) -> Committed:
    run = run_of(row.partition(" with")[0])._replace(partition=partition)
    tx_id, time = id_of(row.split(" ")[0]), number("time ", row)
    return Committed(tx_id, 1, (MEMBER, 1), time, run, participants_of(run, row))


def settled_of(row: str) -> Settled:
    columns = columns_of(row)
    outcome = next(one for one in SettledOutcome if one.name.lower() in row)
    given = columns if columns.keys else None
    return Settled(
        id_of(row.split(" ")[0]), 1, run_of(row), outcome, number("time ", row, 0), given
    )


def supplied_of(row: str, partition: int) -> Supplied:
    run = run_of(row)._replace(partition=partition)
    return Supplied(id_of(row.split(" ")[0]), 1, run, number("time ", row), columns_of(row))


class Fold:
    """A state and the content that goes with it, as a store keeps it: deletes leave a mark."""

    def __init__(self) -> None:
        self.state = State(b"s" * 16, one_space(PARTITIONS))
        self.content: dict[tuple[int, bytes], tuple[int, int, bytes | None]] = {}
        self.position = 0

    def take(self, line: str) -> None:
        self.position += 1
        if line == "head":
            (record,) = decode_payload(encode_record(self.state.record(self.state.time)))
            assert isinstance(record, StateRecord)
            self.state = State.from_record(record)
            return
        self.position -= 1
        self.take_record(record_of(line))

    def take_record(self, given: Record) -> None:
        """Take a record as it stands in the log."""
        self.position += 1
        (record,) = decode_payload(encode_record(given))
        for effect in self.state.apply(self.position, record):
            if isinstance(effect, Cleared):
                gone = [place for place in self.content if place[0] == effect.partition]
                for place in gone:
                    del self.content[place]
            else:
                self._apply(effect)

    def _apply(self, effect: Applied) -> None:
        run = effect.run
        for index, (key, value) in enumerate(zip(*effect.columns[1:], strict=True)):
            version = run.epoch, run.first + index
            known = self.content.get((run.partition, key))
            if known is None or not effect.late or known[:2] < version:
                self.content[run.partition, key] = (*version, value)

    def lines(self) -> Iterator[str]:
        """What it holds, a line for each partition that has anything."""
        for partition in range(PARTITIONS):
            counter = self.state.counters[partition]
            table = " ".join(f"{e}:{start}" for e, start in self.state.epoch_tables[partition])
            copies = self.state.copies
            parts = [f"p{partition}", f"lwm {counter.lwm}"]
            parts += [f"range {start}+{delta}" for start, delta in counter.out_of_order]
            parts += [f"hwm {counter.hwm}", f"epochs {table}"]
            state = copies.states.get(partition, CopyState.OWNING)
            parts += [] if state is CopyState.OWNING else [state.name.lower().replace("_", " ")]
            pending = copies.pending.get(partition)
            if pending is not None and len(pending):
                shown = (f"{name_of(one.tx_id)}#{one.run.first}" for one in pending.all())
                parts.append(f"pending {' '.join(shown)}")
            ended = (f"#{numbers_ended(one).first}" for one in copies.ended_of(partition))
            parts += [f"ended {numbers}"] if (numbers := " ".join(ended)) else []
            known = " ".join(map(name_of, copies.remembered.get(partition, ())))
            parts += [f"remembered {known}"] if known else []
            if partition in copies.lists:
                parts.append(f"list of epoch {copies.lists[partition].epoch}")
            held = (
                f"{key.decode()}={'-' if value is None else value.decode()}"
                for (p, key), (_, _, value) in sorted(self.content.items())
                if p == partition
            )
            line = ", ".join(parts)
            content = " ".join(held)
            if line != f"p{partition}, lwm 0, hwm 0, epochs 1:1":
                yield f"{line}: {content}" if content else line
