"""What a log has of numbers that are missing elsewhere, by scripts of records."""

from __future__ import annotations

import pytest

from support.fold_scripts import MEMBER, NAMESPACE, PARTITIONS, name_of, record_of
from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.marks import FIRST_EPOCHS, EpochTable
from tidelog.checkpoints.replay import State
from tidelog.checkpoints.supplying import FoundNumbers, SupplySearch, WantedNumbers
from tidelog.errors import CorruptLogError
from tidelog.tx.numbers import NumberRanges
from tidelog.wal.records import DropNamespaceRecord, IngestRecord, NamespaceRecord, Run


def folded(*lines: str) -> State:
    state = State(b"", one_space(PARTITIONS))
    for position, line in enumerate(lines):
        state.apply(position, record_of(line))
    return state


def search(
    *lines: str,
    missing: NumberRanges,
    before: tuple[str, ...] = (),
    epochs: EpochTable = FIRST_EPOCHS,
) -> FoundNumbers:
    """Look for numbers of partition 0 in what follows on some records."""
    looked = SupplySearch(folded(*before).record(1), {0: WantedNumbers(missing, epochs)})
    for position, line in enumerate(lines):
        looked.take(position, record_of(line))
    return looked.take_out()[0]


def transactions(found: FoundNumbers) -> list[str]:
    """Return id, attempt, epoch, numbers, time and updates of each, as a line."""
    lines = []
    for tx_id, attempt, run, time, columns in found.transactions:
        updates = zip(columns.keys, columns.values, strict=True)
        told = " ".join(f"{k.decode()}={'-' if v is None else v.decode()}" for k, v in updates)
        lines.append(
            f"{name_of(tx_id)}/{attempt} e{run.epoch} #{run.first}+{run.count} at {time}: {told}"
        )
    return lines


def closed(found: FoundNumbers) -> list[tuple[int, int, int]]:
    return [one[:3] for one in found.closed]


def test_the_example() -> None:
    found = search(
        "tx D p0 e1 #4 time 5: a=1",
        "prepare A p0 e1 #5 with p1: b=2 c=-",
        "prepare R p0 e1 #7 with p1: d=4",
        "rollback R: p0 e1 #7+1",
        "commit A time 7: p0 e1 #5+2, p1 e1 #1+1; here p0",
        "prepare B p0 e1 #9 with p1: e=5",
        before=("tx C p0 e1 #1 time 1: a=0 b=0 c=0",),
        missing=[(4, 9)],
    )
    assert transactions(found) == ["D/1 e1 #4+1 at 5: a=1", "A/1 e1 #5+2 at 7: b=2 c=-"]
    assert closed(found) == [(1, 7, 1)]
    assert (found.lacking, found.not_yet) == ([], [(8, 9)])


def test_only_what_is_missing_is_found_and_nothing_of_other_partitions() -> None:
    found = search(
        "tx A p0 e1 #1 time 5: a=1 b=2 c=3",
        "tx B p1 e1 #4 time 6: d=4",
        "tx C p0 e1 #4 time 7: e=5",
        missing=[(2, 2), (4, 4)],
    )
    assert transactions(found) == ["A/1 e1 #2+1 at 5: b=2", "C/1 e1 #4+1 at 7: e=5"]
    assert (closed(found), found.lacking, found.not_yet) == ([], [], [])


def test_what_one_word_commits_has_the_time_of_each_prepare() -> None:
    found = search(
        "prepare A p0 e1 #1: a=1",
        "prepare B p0 e1 #2: b=2",
        "prepare C p0 e1 #3: c=3",
        "commit_upto p0 e1 #2",
        missing=[(1, 3)],
    )
    assert [line[:11] for line in transactions(found)] == ["A/1 e1 #1+1", "B/1 e1 #2+1"]
    assert found.not_yet == [(3, 3)]


def test_what_was_applied_or_prepared_before_the_fold_begins_is_lacking() -> None:
    found = search(
        "commit_upto p0 e1 #3",
        "tx C p0 e1 #4 time 5: c=3",
        before=("tx A p0 e1 #1 time 1: a=1 b=1", "prepare B p0 e1 #3: b=2"),
        missing=[(2, 4)],
    )
    assert transactions(found) == ["C/1 e1 #4+1 at 5: c=3"]
    assert (closed(found), found.lacking, found.not_yet) == ([], [(2, 3)], [])


def test_what_was_applied_above_a_gap_before_the_fold_begins_is_lacking_and_not_closed() -> None:
    found = search(
        "rollback A: p0 e1 #1+1",
        "tx C p0 e1 #3 time 5: c=3",
        before=(
            "prepare A p0 e1 #1 with p1: a=1",
            "prepare B p0 e1 #2 with p1: b=2",
            "commit B time 3: p0 e1 #2+1, p1 e1 #2+1; here p0",
        ),
        missing=[(1, 3)],
    )
    assert transactions(found) == ["C/1 e1 #3+1 at 5: c=3"]
    assert (closed(found), found.lacking, found.not_yet) == ([(1, 1, 1)], [(2, 2)], [])


def test_what_was_prepared_before_and_rolled_back_behind_is_closed() -> None:
    found = search(
        "rollback A: p0 e1 #1+1",
        before=("prepare A p0 e1 #1 with p1: a=1",),
        missing=[(1, 1)],
    )
    assert (closed(found), found.lacking) == ([(1, 1, 1)], [])


def test_a_settle_list_counts_from_its_opening_on_and_brings_what_was_not_here() -> None:
    lines = (
        "prepare A p0 e1 #1 with p1: a=1",
        "prepare B p0 e1 #2 with p1: b=2",
        "settle p0 e2 from #5: A #1+1 e1 rolled_back, B #2+1 e1 committed time 7, "
        "C #3+1 e1 committed time 8 c=3; closed e1 #4+1 gap",
    )
    table = ((1, 1), (2, 5))
    early = search(*lines, missing=[(1, 4)], epochs=table)
    assert (transactions(early), closed(early), early.not_yet) == ([], [], [(1, 4)])
    found = search(*lines, "open p0 e2", missing=[(1, 4)], epochs=table)
    assert transactions(found) == ["B/1 e1 #2+1 at 7: b=2", "C/1 e1 #3+1 at 8: c=3"]
    assert closed(found) == [(1, 1, 1), (1, 4, 1)]
    assert (found.lacking, found.not_yet) == ([], [])


def test_what_came_by_a_supply_is_supplied_further() -> None:
    found = search(
        "admit p0 admission 9 epochs 1:1 lwm 1 hwm 4",
        "supplied p0 admission 9: B e1 #2+1 time 8 b=2; closed e1 #3+1 gap",
        "tx D p0 e1 #4 time 9: d=4",
        before=("tx A p0 e1 #1 time 1: a=1",),
        missing=[(2, 4)],
    )
    assert transactions(found) == ["B/1 e1 #2+1 at 8: b=2", "D/1 e1 #4+1 at 9: d=4"]
    assert (closed(found), found.lacking) == ([(1, 3, 1)], [])


def test_a_search_that_begins_amid_a_supply_takes_what_comes_of_it() -> None:
    # The head of a segment does not say who was admitted, and the search said that the log
    # contradicts the store: no copy of any partition came back from there then.
    found = search(
        "supplied p0 admission 9: B e1 #2+1 time 8 b=2; closed e1 #3+1 gap",
        "tx D p0 e1 #4 time 9: d=4",
        before=("tx A p0 e1 #1 time 1: a=1",),
        missing=[(2, 4)],
    )
    assert transactions(found) == ["B/1 e1 #2+1 at 8: b=2", "D/1 e1 #4+1 at 9: d=4"]
    with pytest.raises(CorruptLogError, match="a supply of admission 10 of partition 0"):
        search(
            "supplied p0 admission 9: B e1 #2+1 time 8 b=2",
            "supplied p0 admission 10: B e1 #3+1 time 8 b=2",
            missing=[(2, 4)],
        )


def test_what_this_copy_got_by_a_full_copy_is_lacking() -> None:
    found = search(
        "tx A p0 e1 #1 time 1: a=1",
        "clear p0 admission 9",
        "admit p0 admission 9 epochs 1:1 lwm 3 ranges 4+1 hwm 6",
        "tx E p0 e1 #6 time 9: e=5",
        missing=[(1, 6)],
    )
    assert transactions(found) == ["A/1 e1 #1+1 at 1: a=1", "E/1 e1 #6+1 at 9: e=5"]
    assert (closed(found), found.lacking, found.not_yet) == ([], [(2, 3), (5, 5)], [(4, 4)])


def test_the_rows_of_a_load_are_lacking() -> None:
    looked = SupplySearch(folded().record(1), {0: WantedNumbers([(1, 4)], FIRST_EPOCHS)})
    looked.take(0, record_of("tx A p0 e1 #1 time 1: a=1"))
    looked.take(
        1,
        IngestRecord(
            time=2,
            namespace=NAMESPACE,
            load=MEMBER,
            runs=(Run(0, 1, 2, 2), Run(1, 1, 1, 5)),
            digests=(bytes(25), bytes(25)),
        ),
    )
    found = looked.take_out()[0]
    assert (found.lacking, found.not_yet, closed(found)) == ([(2, 3)], [(4, 4)], [])


def test_numbers_that_were_given_out_again_are_those_of_the_newest_epoch() -> None:
    # 3 and 4 were applied, or closed, where the first epoch ended otherwise for all others.
    found = search(
        "tx A p0 e1 #1 time 1: a=1 b=1",
        "tx X p0 e1 #3 time 2: c=1",
        "rollback R: p0 e1 #4+1",
        "admit p0 admission 9 epochs 1:1 2:3 lwm 2 hwm 2",
        "tx C p0 e2 #3 time 5: c=2",
        "tx D p0 e2 #4 time 6: d=2",
        missing=[(1, 4)],
        epochs=((1, 1), (2, 3)),
    )
    assert [line[:11] for line in transactions(found)] == [
        "A/1 e1 #1+2", "C/1 e2 #3+1", "D/1 e2 #4+1",
    ]  # fmt: skip
    assert closed(found) == []


def test_long_ranges_are_told_by_epoch() -> None:
    found = search(
        "settle p0 e2 from #1000001: ; closed e1 #1+1000000 gap",
        "open p0 e2",
        "settle p0 e3 from #2000001: ; closed e2 #1000001+1000000 gap",
        "open p0 e3",
        missing=[(5, 1_999_999)],
        epochs=((1, 1), (2, 1_000_001), (3, 2_000_001)),
    )
    assert closed(found) == [(1, 5, 999_996), (2, 1_000_001, 999_999)]


def test_what_a_map_that_was_dropped_meanwhile_would_have_got_is_closed() -> None:
    looked = SupplySearch(folded().record(1), {0: WantedNumbers([(1, 1)], FIRST_EPOCHS)})
    looked.take(
        0,
        NamespaceRecord(
            id=NAMESPACE,
            name="n",
            key_codec="bytes",
            key_version=1,
            value_codec="bytes",
            value_version=1,
        ),
    )
    looked.take(1, record_of("prepare A p0 e1 #1: a=1"))
    looked.take(2, DropNamespaceRecord(id=NAMESPACE, time=2))
    looked.take(3, record_of("commit_upto p0 e1 #1"))
    assert closed(looked.take_out()[0]) == [(1, 1, 1)]


def test_it_tells_how_much_it_has_found() -> None:
    looked = SupplySearch(folded().record(1), {0: WantedNumbers([(1, 9)], FIRST_EPOCHS)})
    looked.take(0, record_of("tx A p0 e1 #1 time 1: a=123 bb=-"))
    assert looked.bytes == len("a123bb")
    assert repr(looked) == "<SupplySearch of 1 transactions, 1 ranges left>"


@pytest.mark.parametrize("missing", [[], [(7, 9)]])
def test_what_no_record_has_is_not_known_yet(missing: NumberRanges) -> None:
    found = search("tx A p0 e1 #1 time 1: a=1", missing=missing)
    assert (found.transactions, found.closed, found.lacking) == ([], [], [])
    assert found.not_yet == missing


@pytest.mark.parametrize("line", ["supplied p0 admission 7: A e1 #1 time 1: a=1", "open p0 e2"])
def test_what_began_before_the_log_in_another_partition_is_passed_over(line: str) -> None:
    looked = SupplySearch(folded().record(1), {1: WantedNumbers([(1, 4)], FIRST_EPOCHS)})
    looked.take(100, record_of(line))
    assert looked.take_out()[1].not_yet == [(1, 4)]
