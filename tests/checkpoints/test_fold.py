"""Scripts of records, and what the fold makes of them: counters, epochs, what is pending, content.

A script in ``fold/`` is blocks of two parts.  Above ``---`` stand records, one to a line; below it
what the fold holds then, as this module shows it.  Rewrite them with TIDELOG_REWRITE_GOLDEN=1.

    tx A p0 e1 #1 time 5: a=1 b=-           a delete is `b=-`
    prepare A p0 e1 #1 with p1: a=1
    commit A time 7: p0 e1 #1+1, p1 e1 #4+2; here p0
    commit_upto p0 e1 #3
    rollback A: p0 e1 #1+2
    settle p0 e2 from #4: A #1+2 e1 rolled_back, B #3+1 e1 committed time 7 x=1; closed e1 #2+1 gap
    open p0 e2
    clear p0 admission 9
    admit p0 admission 9 epochs 1:1 2:4 lwm 3 ranges 5+2 hwm 9
    supplied p0 admission 9: C e2 #4+1 time 8 x=1; closed e2 #5+1 gap
    epoch p0 e2 from #4
    head                                    goes on with the state that a new segment begins with
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.affinity.errors import CorruptLogError
from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.continuity import Continuity, is_free
from tidelog.checkpoints.copies import CopyState
from tidelog.checkpoints.marks import PartitionMark
from tidelog.checkpoints.replay import _FOLD, Applied, Cleared, State
from tidelog.wal.format import Frame
from tidelog.wal.records import (
    RECORD_FORMS,
    AdmitRecord,
    ClearRecord,
    Closed,
    Columns,
    CommitRecord,
    CommitUptoRecord,
    EpochRecord,
    Opened,
    OpenRecord,
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
    UnknownRecord,
    Upto,
    decode_payload,
    encode_record,
)

SCRIPTS = sorted((Path(__file__).parent / "fold").glob("*.txt"))
PARTITIONS = 2
KINDS = {
    "tx", "prepare", "commit", "commit_upto", "rollback", "settle", "open", "clear", "admit",
    "supplied", "epoch",
}  # fmt: skip
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
            others = [int(p) for p in re.findall(r"p(\d+)", head.partition("with")[2])]
            return PrepareRecord(
                tx_id=tx_id,
                attempt=1,
                near=(MEMBER, 1),
                time=time,
                home=run.partition,
                participants=(
                    Participant(run.partition, run.epoch, run.count),
                    *(Participant(p, 1, 1) for p in others),
                ),
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
            return RollbackRecord(tx_id=tx_id, time=time, reason="told", runs=gone)
        case "settle":
            rows, _, closed = body.partition("; closed ")
            return SettleRecord(
                partition=number("p", head),
                epoch=number("e", head),
                start=number("#", head),
                transactions=tuple(map(settled_of, filter(None, rows.split(", ")))),
                closed=closed_of(closed),
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
        case "epoch":
            return EpochRecord(
                time=time,
                first_partition=number("p", rest),
                epochs=[number("e", rest)],
                starts=[number("#", rest)],
            )
    raise AssertionError(line)


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
        (record,) = decode_payload(encode_record(record_of(line)))
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


def run_script(text: str) -> str:
    """The script with what the fold really holds."""
    fold, shown = Fold(), []
    for block in text.strip().split("\n\n"):
        records = block.partition("\n---")[0]
        for line in records.splitlines():
            if line.startswith("#"):
                continue
            if line.startswith("refused "):
                with pytest.raises(CorruptLogError):
                    fold.take(line.removeprefix("refused "))
            else:
                fold.take(line)
        shown.append("\n".join([records, "---", *fold.lines()]))
    return "\n\n".join(shown) + "\n"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_fold_is_that_of_its_script(script: Path) -> None:
    text = script.read_text("utf-8")
    shown = run_script(text)
    if "TIDELOG_REWRITE_GOLDEN" in os.environ:
        script.write_text(shown, "utf-8")
        pytest.fail(f"{script.name} was written anew: read the difference, then run without it")
    assert shown == text


def told_of(text: str) -> list[str]:
    """What ``wal verify`` says of a script's records, those left out that the fold refuses."""
    told: list[str] = []
    continuity = Continuity(told.append)
    fold = Fold()
    lines = [line for line in text.splitlines() if line and line[0].islower()]
    head = State(b"s" * 16, one_space(PARTITIONS)).record(0)
    for position, line in enumerate(["head", *lines]):
        kind = line.split(" ")[0]
        if position and (kind in ("refused", "head") or kind[1:2].isdigit()):
            continue
        frame = Frame(position, 0, b"", 1, position)
        continuity.take(frame, head if line == "head" else record_of(line))
        if position:
            fold.take(line)
    for numbers, counter in zip(continuity.numbers, fold.state.counters, strict=True):
        # It takes the numbers of a PREPARE as used; the fold does only once it has an outcome.
        assert numbers.highest_applied <= counter.hwm
        assert all(is_free(counter, first, last - first + 1) for first, last in numbers.missing)
    return told


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_log_of_a_script_goes_on_as_it_must(script: Path) -> None:
    assert told_of(script.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ("commit A time 7: p0 e1 #1+1; here p0", "which was not prepared"),
        ("open p0 e2", "without its list"),
        ("settle p0 e2 from #1\nopen p0 e3", "without its list"),
        ("prepare A p0 e1 #1: a=1\nprepare B p0 e1 #1: b=1", "for a second time"),
        ("prepare A p0 e1 #1: a=1\nrollback B: p0 e1 #1+1", "for a second time"),
        ("tx A p0 e1 #1 time 5: a=1\ntx B p0 e1 #2 time 4: a=1", "commit time 4 after 5"),
        ("settle p0 e2 from #1\nopen p0 e2\ntx A p0 e1 #1: a=1", "epoch 1 instead of 2"),
        ("admit p0 admission 1 epochs 3:1 lwm 4 ranges hwm 4\ntx A p0 e3 #4: a=1", "second time"),
    ],
)
def test_a_log_that_does_not_go_on_as_it_must_is_told(records: str, says: str) -> None:
    told: list[str] = []
    continuity = Continuity(told.append)
    continuity.take(Frame(0, 0, b"", 1, 0), State(b"s" * 16, one_space(PARTITIONS)).record(0))
    for line in records.splitlines():
        continuity.take(Frame(1, 0, b"", 1, 1), record_of(line))
    assert len(told) == 1
    assert says in told[0]


def test_times_of_different_partitions_and_epochs_do_not_bind_each_other() -> None:
    assert (
        told_of(
            "tx A p0 e1 #1 time 9: a=1\n"
            "tx B p1 e1 #1 time 5: a=1\n"
            "epoch p0 e2 from #2\n"
            "tx C p0 e2 #2 time 6: a=1"
        )
        == []
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_checkpoint_has_already_is_passed_over(script: Path) -> None:
    fold = Fold()
    fold.state.replay_from = [1 << 60] * PARTITIONS
    for line in script.read_text("utf-8").splitlines():
        if line.split(" ")[0] in KINDS - {"epoch"}:
            fold.take(line)
    assert fold.content == {}
    assert list(fold.lines()) == []


def test_what_a_checkpoint_says_of_a_copy_is_taken_over() -> None:
    mark = replace(PartitionMark.empty(), state=2, admission=9, sealed=4)
    prepare, settle = record_of("prepare A p0 e1 #1: a=1"), record_of("settle p0 e2 from #2")
    state = State.from_marks(
        b"s" * 16, one_space(PARTITIONS), None, {0: mark}, {0: [prepare, settle]}
    )
    copies = state.copies
    assert (copies.states, copies.admissions) == ({0: CopyState.NOT_WHOLE}, {0: 9})
    assert copies.sealed == {0: 4}
    assert copies.entries(0) == [prepare, settle]


@pytest.mark.parametrize(
    "line",
    [
        "prepare A p0 e1 #1: a=1",
        "settle p0 e2 from #1",
        "admit p0 admission 9 epochs 1:1 lwm 0 ranges hwm 0",
        "clear p0 admission 9",
        "rollback A: p0 e1 #1+1",
    ],
)
def test_the_next_checkpoint_writes_a_partition_of_which_the_log_tells_no_update(line: str) -> None:
    fold = Fold()
    fold.take(line)
    assert fold.state.touched == {0}


def test_a_supply_moves_the_time_and_has_no_effect_for_a_second_time() -> None:
    state = State(b"s" * 16, one_space(PARTITIONS))
    state.apply(1, record_of("admit p0 admission 9 epochs 1:1 lwm 0 ranges hwm 0"))
    supply = record_of("supplied p0 admission 9: A e1 #1+1 time 6 a=1")
    assert len(state.apply(2, supply)) == 1
    assert state.time == 6
    assert state.apply(3, supply) == []


def test_the_fold_has_a_row_for_every_type_of_record() -> None:
    assert set(_FOLD) == {row.record for row in RECORD_FORMS} | {UnknownRecord}
