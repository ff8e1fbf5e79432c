"""What became of a transaction, by what one member knows of it and by what its log has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from tidelog.affinity.partitions import one_space
from tidelog.affinity.topology import Incarnation, Loss, Resolution, Topology
from tidelog.checkpoints.replay import State
from tidelog.engine.commit.outcomes import CLOCKS_APART, dated_id
from tidelog.engine.files.recorded import Filled, Fills
from tidelog.engine.node.tasks import Tasks
from tidelog.engine.node.tx_history import LOOK_AGAIN_S, LOOK_ANEW_S, TxHistory
from tidelog.errors import CorruptLogError, DiskError
from tidelog.wal.records import (
    AdmitRecord,
    Columns,
    CommitRecord,
    Committed,
    OutcomesRecord,
    Participant,
    Pending,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    Settled,
    SettledOutcome,
    SettleRecord,
    Supplied,
    SuppliedRecord,
    TxRecord,
)

STORE = b"s" * 16
NEAR = b"m" * 16, 1
SECOND = 1_000_000
BORN = 100 * SECOND
SURE = BORN - CLOCKS_APART
"""A time that the id is younger than, by any clock."""
TX = dated_id(BORN, b"%016d" % 1, STORE)
OTHER = dated_id(BORN, b"%016d" % 3, STORE)
HERE, THERE = Run(0, 1, 5, 2), Run(1, 1, 8, 1)
PARTS = Participant(0, 1, 2), Participant(1, 1, 1)
COMMITTED = CommitRecord(tx_id=TX, attempt=1, time=11, participants=(HERE, THERE), applied=(0,))
ROLLED_BACK = RollbackRecord(tx_id=TX, time=11, reason="refused", runs=(HERE,), attempt=1)
ALONE = TxRecord(TX, 11, (HERE,), 16, [b"a", b"b"], [b"1", b"2"])


def prepared(run: Run, tx_id: bytes = TX) -> PrepareRecord:
    keys = [b"k"] * run.count
    return PrepareRecord(
        tx_id, 1, NEAR, 10, 0, PARTS, run, 16, keys, list[bytes | None](keys), None, {}
    )  # fmt: skip


def filled_at(until: int | None, cleared: int | None = None) -> Fills:
    """Full copies as the log tells them: one of partition 0."""
    found = Fills(from_beginning=True)
    found._known[0] = Filled(cleared, until)
    return found


class At:
    """A member whose log has some records about the transaction, and nothing else."""

    def __init__(
        self,
        *records: Record,
        first: int = 0,
        since: int = 0,
        filled: int | None = 0,
        cleared: int | None = None,
    ) -> None:
        self.state = State(STORE, one_space(2))
        self.fails: Exception | None = None
        self.mends = 99
        """After so many looks that fail the log can be read."""
        self.looks = 0
        keeper = SimpleNamespace(
            records_about=self._records, first_position=first, known_since=lambda: since,
            fills=self._all_fills,
        )  # fmt: skip
        files: Any = SimpleNamespace(
            state=self.state, keeper=keeper, path="store",
            manifest=SimpleNamespace(log_ids=[]), environment=SimpleNamespace(run=self._run),
        )  # fmt: skip
        self.fills = filled_at(filled, cleared)
        self.fill_looks = 0
        if filled != 0:
            self.state.copies.admissions[0] = 1
        self.records = list(records)
        self.tasks = Tasks()
        self.history = TxHistory(files, self.tasks, trio.current_time)

    def _records(self, _tx_id: bytes, _log_ids: object) -> list[tuple[int, Record]]:
        self.looks += 1
        if self.fails is not None and self.looks <= self.mends:
            raise self.fails
        return list(enumerate(self.records))

    def _all_fills(self) -> Fills:
        self.fill_looks += 1
        return self.fills

    async def _run(self, _name: str, work: Callable[[], object]) -> object:
        await trio.lowlevel.checkpoint()
        return work()

    def remember(self) -> None:
        known = Committed(TX, 1, NEAR, 11, HERE, PARTS)
        self.state.copies.take_outcomes(OutcomesRecord(partition=0, committed=(known,)))

    def told(self, ask: Callable[[Callable[[Any], object]], object]) -> Any:
        """Return what is heard."""
        heard: list[Any] = []

        async def work() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.tasks.run)
                await trio.testing.wait_all_tasks_blocked()
                ask(heard.append)
                while not heard:
                    await trio.sleep(LOOK_AGAIN_S)
                nursery.cancel_scope.cancel()

        trio.run(work, clock=MockClock(autojump_threshold=0))
        [found] = heard
        return found

    def outcome(self, tx_id: bytes = TX, home: int = 0) -> Any:
        return self.told(lambda done: self.history.find_outcome(tx_id, home, done))

    def story(self) -> Any:
        return self.told(lambda done: self.history.tell(TX, done))


def test_a_commit_of_one_partition_has_no_record_but_its_prepare() -> None:
    # Its end is what follows; unless a newer epoch has given its numbers to others (N1).
    alone = prepared(HERE)._replace(participants=PARTS[:1])
    for table, outcome in (([(1, 0)], "committed"), ([(1, 0), (2, 4)], "rolled_back")):
        at = At(alone)
        at.state.epoch_tables[0] = tuple(table)
        assert at.outcome() == outcome


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        ((prepared(HERE), COMMITTED), "committed"),
        ((prepared(HERE), ROLLED_BACK), "rolled_back"),
        ((ALONE,), "committed"),
        ((), "rolled_back"),
        ((prepared(HERE),), "rolled_back"),
        ((prepared(THERE),), "rolled_back"),
    ],
)
def test_what_a_whole_log_says_is_so(records: Sequence[Record], outcome: str) -> None:
    assert At(*records).outcome() == outcome


@pytest.mark.parametrize("records", [(), (prepared(HERE),), (prepared(THERE),)])
def test_a_log_that_may_have_lost_the_end_does_not_tell(records: Sequence[Record]) -> None:
    # A part without its end, or that of another partition here, counted as rolled back.
    assert At(*records, filled=None).outcome() == "too_old"
    assert At(*records, first=9, since=SURE).outcome() == "too_old"
    assert At(*records, first=9, since=SURE - 1).outcome() == "rolled_back"
    assert At(*records, since=BORN).outcome() == "rolled_back", "it has its beginning"


def test_what_is_younger_than_a_full_copy_would_be_in_the_log() -> None:
    # It was "too old to tell" for as long as the log had the copy in it: each kill of a member that
    # had once been copied in full left commits under way unknown.
    assert At(filled=SURE).outcome() == "too_old"
    assert At(filled=SURE - 1).outcome() == "rolled_back"
    assert At(filled=BORN + CLOCKS_APART).outcome() == "too_old"
    assert At(filled=BORN).outcome(home=1) == "rolled_back", "it was another partition"
    assert At(filled=1).outcome(b"no age in this id") == "too_old"
    lost = At(filled=1, first=9, since=BORN)
    assert lost.outcome() == "too_old", "the log does not go back so far"


ADMITTED = AdmitRecord(
    partition=0, admission=1, epochs=((1, 1),), lwm=0, ranges=(), hwm=9, dropped=(TX,)
)


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        ((prepared(HERE)._replace(participants=PARTS[:1]),), "too_old"),
        ((prepared(HERE), ROLLED_BACK), "too_old"),
        ((prepared(HERE), ADMITTED), "too_old"),
        ((prepared(HERE), COMMITTED), "committed"),
        ((ALONE,), "committed"),
    ],
)
def test_what_is_before_a_full_copy_says_only_what_had_committed(
    records: Sequence[Record], outcome: str
) -> None:
    # A PREPARE that others had rolled back had "committed"; and what an ADMIT had dropped, whose
    # supply never came, was "rolled back", though the full copy that followed has it.
    at = At(*records, filled=None, cleared=len(records) - 1)  # CLEAR ends the frame of the last
    assert at.outcome() == outcome
    assert {row[1] for row in at.story() if row[0] == 0} == {
        None if outcome == "too_old" else outcome
    }
    behind = At(ALONE, *records, filled=None, cleared=0)
    assert behind.outcome() == At(*records).outcome()


def test_the_log_is_read_once_for_full_copies_however_many_ask() -> None:
    at = At(filled=SURE - 1)

    def asked() -> int:
        def ask(done: Callable[[Any], object]) -> None:
            for hears in [*[lambda _found: None] * 8, done]:
                at.history.find_outcome(TX, 0, hears)

        assert at.told(ask) == "rolled_back"
        return at.fill_looks

    assert asked() == 1
    assert asked() == 1
    at.state.copies.moves += 1
    assert asked() == 2, "another copy has come"


def test_a_copy_of_which_the_log_did_not_tell_is_looked_for_anew_a_little_later() -> None:
    at, told = At(filled=None), list[str]()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.tasks.run)
            await trio.testing.wait_all_tasks_blocked()
            for pause in (0.0, LOOK_ANEW_S / 2, LOOK_ANEW_S):
                await trio.sleep(pause)
                at.history.find_outcome(TX, 0, lambda found: told.append(str(found)))
                await trio.testing.wait_all_tasks_blocked()
                at.fills = filled_at(SURE - 1)
            nursery.cancel_scope.cancel()

    trio.run(work, clock=MockClock(autojump_threshold=0))
    assert at.fill_looks == 2
    assert told[0] == "too_old"
    assert told[-1] == "rolled_back"


def test_an_id_that_does_not_tell_its_age_may_be_of_what_was_dropped() -> None:
    assert At(first=9).outcome(b"no age in this id") == "too_old"
    assert At().outcome(b"no age in this id") == "rolled_back"


@pytest.mark.parametrize("filled", [0, None])
def test_what_is_remembered_has_committed_whatever_the_log_has(filled: int | None) -> None:
    # Of what was copied in full it was said that it is too old to tell.
    for records in ((), (prepared(HERE),)):
        at = At(*records, filled=filled)
        at.remember()
        assert at.outcome() == "committed"


def test_what_is_pending_is_waited_for() -> None:
    at = At(prepared(HERE))
    at.state.copies.prepared(0).add(prepared(HERE))
    looks = 0

    async def end() -> None:
        nonlocal looks
        await trio.sleep(3 * LOOK_AGAIN_S)
        looks = at.looks
        at.state.copies.prepared(0).take(TX, HERE)
        at.records.append(COMMITTED)

    def ask(done: Callable[[Any], object]) -> None:
        at.tasks.begin(end)
        at.history.find_outcome(TX, 0, done)

    assert at.told(ask) == "committed"
    assert (looks, at.looks) == (0, 1), "the log is read behind its end"


def test_what_becomes_pending_while_the_log_is_read_is_waited_for_too() -> None:
    at = At()
    genuine = at._records

    async def end() -> None:
        await trio.sleep(3 * LOOK_AGAIN_S)
        at.state.copies.prepared(0).take(TX, HERE)
        at.records += [prepared(HERE), COMMITTED]

    def records(tx_id: bytes, log_ids: object) -> list[tuple[int, Record]]:
        if at.looks == 0:
            at.state.copies.prepared(0).add(prepared(HERE))
        return genuine(tx_id, log_ids)

    def ask(done: Callable[[Any], object]) -> None:
        at.tasks.begin(end)
        at.history.find_outcome(TX, 0, done)

    at.history._files.keeper.records_about = records  # type: ignore[method-assign]
    assert at.told(ask) == "committed"
    assert at.looks == 2


def test_what_stays_pending_is_said_to_be_so_when_nobody_waits_any_more() -> None:
    # Who had asked about a transaction in doubt left a task behind that read the log for ever.
    at = At(prepared(HERE))
    at.state.copies.prepared(0).add(prepared(HERE))

    def ask(done: Callable[[Any], object]) -> None:
        at.history.find_outcome(TX, 0, done, trio.current_time() + 3.0)

    assert at.told(ask) == "pending"
    assert at.looks == 0


def test_what_is_pending_or_remembered_of_others_tells_nothing() -> None:
    at = At(ALONE)
    at.state.copies.prepared(0).add(prepared(Run(0, 1, 7, 1), OTHER))
    assert at.story() == [[0, "committed", False, 1, 5, 2, None]]
    other = Committed(OTHER, 1, NEAR, 11, Run(0, 1, 9, 1), PARTS)
    at.state.copies.take_outcomes(OutcomesRecord(partition=0, committed=(other,)))
    assert at.story() == [[0, "committed", False, 1, 5, 2, None]]
    at = At(filled=None)
    known = Committed(TX, 1, NEAR, 11, THERE, PARTS)
    at.state.copies.take_outcomes(OutcomesRecord(partition=1, committed=(known,)))
    assert at.outcome() == "too_old", "it is another partition that has it"


def loss(time: int, partition: int = 0) -> Loss:
    author = Incarnation(UUID(int=1), 1)
    return Loss(
        index=3, partition=partition, before=1, epoch=2, author=author, opened=1, upto=3, time=time
    )


@pytest.mark.parametrize(
    ("losses", "outcome"),
    [
        ((loss(BORN),), "too_old"),
        ((loss(SURE),), "too_old"),
        ((loss(SURE - 1),), "rolled_back"),
        ((loss(SURE), loss(SURE - 1)), "too_old"),
        ((loss(SURE - 1), loss(SURE)), "too_old"),
        ((loss(BORN, 1),), "rolled_back"),
    ],
)
def test_what_a_partition_may_have_lost_is_too_old_to_tell(
    losses: tuple[Loss, ...], outcome: str
) -> None:
    at = At()
    at.history.decided(Topology(losses=losses))
    assert at.outcome() == outcome
    mine = [one for one in losses if one.partition == 0]
    assert at.outcome(b"no age in this id") == ("too_old" if mine else "rolled_back")


def test_what_was_resolved_for_others_tells_nothing() -> None:
    def resolution(tx_id: bytes, partitions: tuple[int, ...]) -> Resolution:
        return Resolution(
            index=4, tx_id=tx_id, attempt=1, commits=True, by_hand=True, time=11,
            partitions=partitions, missing=partitions[:1],
        )  # fmt: skip

    at = At(filled=None)
    resolutions = resolution(OTHER, (0, 1)), resolution(TX, (1,))
    at.history.decided(Topology(resolutions=resolutions))
    assert at.outcome() == "too_old"
    assert at.outcome(OTHER) == at.outcome(home=1) == "committed"


@pytest.mark.parametrize("commits", [True, False])
def test_what_was_resolved_is_told_where_nothing_else_is_known(commits: bool) -> None:
    resolution = Resolution(
        index=4, tx_id=TX, attempt=1, commits=commits, by_hand=True, time=11, partitions=(0, 1),
        missing=(0,),
    )  # fmt: skip
    at = At(filled=None)
    at.history.decided(Topology(losses=(loss(BORN),), resolutions=(resolution,)))
    assert at.outcome() == ("committed" if commits else "rolled_back")
    at.records = [prepared(HERE), ROLLED_BACK if commits else COMMITTED]
    assert at.outcome() == ("rolled_back" if commits else "committed"), "that is what is so here"


def test_a_log_that_cannot_be_read_is_told() -> None:
    at = At()
    at.fails = CorruptLogError("damaged", kind="crc", segment=0, offset=0)
    assert isinstance(at.outcome(), CorruptLogError)
    assert isinstance(at.story(), CorruptLogError)


def test_a_disk_that_does_not_read_is_told() -> None:
    at = At()
    at.fails = OSError(5, "input/output error")
    assert isinstance(at.outcome(), DiskError)


def test_a_segment_that_is_dropped_while_the_log_is_read_is_no_damage() -> None:
    # A benchmark was told "a segment is missing", while a checkpoint dropped those before.
    at = At(ALONE)
    at.fails, at.mends = CorruptLogError("a gap", kind="gap", segment=1, offset=0), 2
    assert at.outcome() == "committed"
    assert at.looks == 3


def test_the_story_has_each_partition_of_which_something_is_here() -> None:
    assert At().story() == []
    assert At(prepared(HERE), COMMITTED, prepared(THERE)).story() == [
        [0, "committed", False, 1, 5, 2, 0], [1, None, False, 1, 8, 1, 0],
    ]  # fmt: skip
    assert At(ALONE).story() == [[0, "committed", False, 1, 5, 2, None]]


def test_the_story_has_what_is_pending_and_what_is_remembered_though_no_log_has_it() -> None:
    at = At()
    at.remember()
    at.state.copies.prepared(1).add(prepared(THERE))
    assert at.story() == [
        [0, "committed", True, 1, 5, 2, 0], [1, "pending", False, 1, 8, 1, 0],
    ]  # fmt: skip


def test_the_story_has_the_newest_numbers_that_a_transaction_got_in_a_partition() -> None:
    old = prepared(Run(0, 1, 3, 2))
    assert At(old, prepared(HERE)).story() == [[0, None, False, 1, 5, 2, 0]]
    at = At(old)
    at.state.copies.prepared(0).add(prepared(HERE))
    assert at.story() == [[0, "pending", False, 1, 5, 2, 0]]
    at = At(old)
    at.remember()
    assert at.story() == [[0, "committed", True, 1, 5, 2, 0]]


def test_the_story_is_in_the_order_of_partitions_also_where_no_home_is_known() -> None:
    assert [row[0] for row in At(prepared(THERE), prepared(HERE)).story()] == [0, 1]
    at = At()
    at.state.copies.prepared(0).add(Pending(TX, 1, HERE))
    assert at.story() == [[0, "pending", False, 1, 5, 2, None]]


# ------------------------------------------------------------------ what came from other copies


def admitted(partition: int) -> AdmitRecord:
    """The record of a copy that was behind, in which the transaction was pending."""
    return AdmitRecord(
        partition=partition, admission=9, epochs=((1, 1),), lwm=4, ranges=(), hwm=9, dropped=(TX,)
    )


def settled(outcome: SettledOutcome) -> SettleRecord:
    """The record of a takeover that came upon the transaction, and upon another one."""
    row = Settled(TX, 1, HERE, outcome, 11, None)
    other = Settled(OTHER, 1, Run(0, 1, 7, 1), SettledOutcome.COMMITTED, 11, None)
    return SettleRecord(partition=0, epoch=1, start=8, transactions=(row, other), closed=())


def supplied() -> SuppliedRecord:
    """The record of what a copy that was behind got from another one."""
    columns = Columns(16, [b"a", b"b"], [b"1", b"2"])
    rows = Supplied(TX, 1, HERE, 11, columns), Supplied(OTHER, 1, Run(0, 1, 7, 2), 11, columns)
    return SuppliedRecord(partition=0, admission=9, source=b"m" * 16, transactions=rows, closed=())


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (supplied(), "committed"),
        (settled(SettledOutcome.COMMITTED), "committed"),
        (settled(SettledOutcome.ROLLED_BACK), "rolled_back"),
    ],
)
def test_what_came_from_other_copies_tells_of_the_transaction_and_of_no_other_in_it(
    record: Record, outcome: str
) -> None:
    at = At(prepared(HERE), record, filled=None)
    assert at.outcome() == outcome
    assert at.outcome(home=1) == "rolled_back"
    assert At(record).story() == [[0, outcome, False, 1, 5, 2, None]]


def test_what_was_pending_in_a_copy_that_was_behind_has_ended_there_and_nowhere_else() -> None:
    assert At(prepared(HERE), admitted(0), filled=None).outcome() == "rolled_back"
    assert At(prepared(HERE), admitted(1), filled=None).outcome() == "too_old"


def test_a_record_of_several_partitions_tells_of_each() -> None:
    rows = [b"a", b"b", b"c"]
    at = At(ALONE._replace(runs=(HERE, THERE), keys=rows, values=list(rows)), filled=None)
    assert (at.outcome(), at.outcome(home=1)) == ("committed", "committed")
