"""Scripts of records, and what the fold makes of them: counters, epochs, what is pending, content.

A script in ``fold/`` is blocks of two parts.  Above ``---`` stand records, one to a line, as
``support.fold_scripts`` reads them; below it what the fold holds then.  Rewrite them with
TIDELOG_REWRITE_GOLDEN=1.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from support.fold_scripts import MEMBER, PARTITIONS, Fold, id_of, record_of
from tidelog.affinity.errors import CorruptLogError
from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.continuity import Continuity, is_free
from tidelog.checkpoints.copies import OUTCOMES_MAX, Copies, CopyState, Prepared
from tidelog.checkpoints.marks import PartitionMark
from tidelog.checkpoints.replay import _FOLD, Applied, State
from tidelog.tx.counter import PartitionUpdateCounter
from tidelog.wal.format import Frame
from tidelog.wal.records import (
    RECORD_FORMS,
    Columns,
    CommitRecord,
    Committed,
    CommitUptoRecord,
    DropNamespaceRecord,
    NamespaceRecord,
    OutcomesRecord,
    Participant,
    PrepareRecord,
    Run,
    UnknownRecord,
    Upto,
)

SCRIPTS = sorted((Path(__file__).parent / "fold").glob("*.txt"))
KINDS = {
    "tx", "prepare", "commit", "commit_upto", "rollback", "settle", "open", "clear", "admit",
    "supplied", "outcomes", "epoch",
}  # fmt: skip


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


@pytest.mark.parametrize(
    ("owner", "name", "script"),
    [
        (Prepared, "keep", "several"),
        (Copies, "end", "ended"),
        (Copies, "commit", "ended"),
        (Copies, "open", "ended"),
        (Copies, "forget", "ended"),
        (Copies, "forget", "whole"),
        (Copies, "forget", "outcomes"),
        (Copies, "remember", "outcomes"),
        (Copies, "take_outcomes", "outcomes"),
        (State, "_note_whole", "whole"),
    ],
)
def test_a_step_that_is_left_out_is_found_by_its_script(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, script: str
) -> None:
    text = next(path for path in SCRIPTS if path.stem == script).read_text("utf-8")
    monkeypatch.setattr(owner, name, lambda *_: None)
    assert run_script(text) != text


def counter_of(lwm: int, hwm: int) -> bytes:
    """What a mark has of a counter below which all is applied, and above which some is given."""
    counter = PartitionUpdateCounter(lwm, ())
    counter.prepared(0, hwm)
    return counter.to_bytes()


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


def test_what_a_checkpoint_keeps_of_outcomes_is_remembered_again() -> None:
    fold = Fold()
    fold.take("prepare A p0 e1 #1 with p1: a=1")
    fold.take("commit A time 7: p0 e1 #1+1, p1 e1 #4+1; here p0")
    fold.take("outcomes p0: B #9+1 e1 time 8 with p1")
    entries = fold.state.copies.entries(0)
    again = State.from_marks(b"s" * 16, one_space(PARTITIONS), None, {}, {0: entries}).copies
    assert again.remembered == fold.state.copies.remembered
    assert list(again.remembered) == [0]
    assert again.remembered[0] == {
        id_of(name): Committed(
            id_of(name), 1, (MEMBER, 1), time, Run(0, 1, first, 1),
            (Participant(0, 1, 1), Participant(1, 1, 1)),
        )
        for name, first, time in [("A", 1, 7), ("B", 9, 8)]
    }  # fmt: skip
    assert again.entries(0) == entries
    assert again.entries(1) == []


def test_what_is_remembered_of_a_partition_is_divided_into_records() -> None:
    copies = Copies()
    run, participants = Run(0, 1, 5, 1), (Participant(0, 1, 1), Participant(1, 1, 1))
    committed = [
        Committed(number.to_bytes(16, "big"), 1, (MEMBER, 1), 7, run, participants)
        for number in range(OUTCOMES_MAX + 1)
    ]
    copies.take_outcomes(OutcomesRecord(partition=0, committed=tuple(committed)))
    assert copies.outcomes(0) == [
        OutcomesRecord(partition=0, committed=tuple(committed[:OUTCOMES_MAX])),
        OutcomesRecord(partition=0, committed=tuple(committed[OUTCOMES_MAX:])),
    ]
    again = Copies()
    again.restore(0, copies.entries(0))
    assert again.remembered == copies.remembered
    copies.take_outcomes(OutcomesRecord(partition=0, forgotten=tuple(copies.remembered[0])))
    assert copies.remembered == {}


def test_a_checkpoint_keeps_transactions_and_their_ends_before_outcomes_and_the_list() -> None:
    fold = Fold()
    lines = [
        "settle p0 e1 from #1",
        "open p0 e1",
        "prepare A p0 e1 #1 with p1: a=1",
        "commit A time 7: p0 e1 #1+1, p1 e1 #4+1; here p0",
        "prepare B p0 e1 #2: b=1",
        "settle p0 e2 from #3",
    ]
    for line in lines:
        fold.take(line)
    end = CommitRecord(
        tx_id=id_of("A"), attempt=1, time=7, participants=(Run(0, 1, 1, 1),), applied=(0,)
    )
    outcomes = record_of("outcomes p0: A #1+1 e1 time 7 with p1")
    wanted = [end, record_of(lines[4]), outcomes, record_of(lines[5])]
    assert fold.state.copies.entries(0) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "prepare A p0 e1 #1: a=1",
        "settle p0 e2 from #1",
        "admit p0 admission 9 epochs 1:1 lwm 0 ranges hwm 0",
        "clear p0 admission 9",
        "outcomes p0: A #1+1 e1 time 7 with p1",
        "rollback A: p0 e1 #1+1",
    ],
)
def test_the_next_checkpoint_writes_a_partition_of_which_the_log_tells_no_update(line: str) -> None:
    fold = Fold()
    fold.take(line)
    assert fold.state.touched == {0}


def test_a_copy_that_lacks_something_at_a_checkpoint_becomes_whole_by_what_comes_behind_it() -> (
    None
):
    mark = replace(
        PartitionMark.empty(), position=7, state=1, admission=9, sealed=1,
        counter=counter_of(lwm=2, hwm=4),
    )  # fmt: skip
    state = State.from_marks(
        b"s" * 16,
        one_space(PARTITIONS),
        None,
        {0: mark},
        {0: [record_of("prepare A p0 e1 #3: a=1")]},
    )
    assert not state.copies.is_whole(0)
    state.apply(6, record_of("rollback nobody: p0 e1 #4+1"))
    assert not state.copies.is_whole(0), "the checkpoint has that"
    state.apply(7, record_of("rollback nobody: p0 e1 #4+1"))
    assert state.copies.is_whole(0)


def test_a_copy_that_was_admitted_to_an_epoch_has_sealed_it() -> None:
    state = State(b"s" * 16, one_space(PARTITIONS))
    state.apply(1, record_of("admit p0 admission 9 epochs 1:1 3:2 lwm 1 ranges hwm 1"))
    assert state.copies.sealed == {0: 3}
    assert state.copies.is_whole(0)


@pytest.mark.parametrize("other", [CopyState.NOT_WHOLE, CopyState.QUARANTINED])
def test_a_copy_that_counts_for_nothing_does_not_become_whole_by_numbers(other: CopyState) -> None:
    state = State(b"s" * 16, one_space(PARTITIONS))
    state.apply(1, record_of("admit p0 admission 9 epochs 1:1 lwm 1 ranges hwm 3"))
    state.copies.states[0] = other
    state.apply(2, record_of("prepare A p0 e1 #2: a=1"))
    state.apply(3, record_of("supplied p0 admission 9: ; closed e1 #3+1 gap"))
    assert state.copies.states[0] is other


def test_a_supply_moves_the_time_and_has_no_effect_for_a_second_time() -> None:
    state = State(b"s" * 16, one_space(PARTITIONS))
    state.apply(1, record_of("admit p0 admission 9 epochs 1:1 lwm 0 ranges hwm 0"))
    supply = record_of("supplied p0 admission 9: A e1 #1+1 time 6 a=1")
    assert len(state.apply(2, supply)) == 1
    assert state.time == 6
    assert state.apply(3, supply) == []


def test_what_was_prepared_of_a_map_that_was_dropped_meanwhile_has_no_effect() -> None:
    # A copy hears of a drop before it hears of commits that the primary made ahead of it: nobody
    # would remove their rows any more.
    state = State(b"s" * 16, one_space(PARTITIONS))
    for number in (16, 17):
        record = NamespaceRecord(
            id=number, name=f"m{number}", key_codec="bytes", key_version=1, value_codec="bytes",
            value_version=1,
        )  # fmt: skip
        state.apply(1, record)
    prepared = PrepareRecord(
        tx_id=b"t" * 16, attempt=1, near=(b"m" * 16, 1), time=5, home=0,
        participants=(Participant(0, 1, 3),), run=Run(0, 1, 1, 3), namespaces=[16, 17, 16],
        keys=[b"a", b"b", b"c"], values=[b"1", b"2", None],
    )  # fmt: skip
    state.apply(2, prepared)
    state.apply(3, DropNamespaceRecord(id=16, time=6))
    effects = state.apply(4, CommitUptoRecord(rows=(Upto(0, 1, 3),)))
    assert effects == [Applied(Run(0, 1, 2, 1), 5, Columns([17], [b"b"], [b"2"]), late=False)]
    assert state.counters[0].lwm == 3


def test_the_fold_has_a_row_for_every_type_of_record() -> None:
    assert set(_FOLD) == {row.record for row in RECORD_FORMS} | {UnknownRecord}
