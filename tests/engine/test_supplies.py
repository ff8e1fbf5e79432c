"""What a primary does for copies that come back to it, step by step: no network, and no disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from support.takeovers import state_of
from tidelog.affinity.changes import CopiesAdded, CopiesAdmitted, CopiesRemoved
from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import (
    Incarnation,
    KnownMember,
    MovingCopy,
    PartitionCopies,
    Topology,
)
from tidelog.checkpoints.marks import PartitionMark
from tidelog.checkpoints.supplying import WantedNumbers
from tidelog.engine.agreement.messages import Guard
from tidelog.engine.node import supplying
from tidelog.engine.node.returns import PATIENCE_S, Return, StoppedError
from tidelog.engine.node.supplying import (
    ASK_AGAIN_S,
    BEHIND_BYTES_MAX,
    FILLED_BYTES,
    FILLED_MAX,
    JOIN_ITEMS,
    PENDING_BYTES_MAX,
    Supplies,
)
from tidelog.engine.node.ways_back import LogHolder
from tidelog.engine.replication.lent import OpenPlace
from tidelog.engine.replication.reports import PreparedHere, Report, report_of
from tidelog.engine.replication.returning import Admitted, Demanded, ReturnPlace
from tidelog.engine.replication.stream import StoredUpto
from tidelog.engine.replication.streams import BY_TAKEOVER, Kept, Streams
from tidelog.errors import CorruptLogError
from tidelog.rebalance.choosing import LogReach, SupplyKind
from tidelog.wal.records import (
    AdmitRecord,
    Committed,
    CommitUptoRecord,
    OutcomesRecord,
    Participant,
    PrepareRecord,
    Run,
    Upto,
)

ME, BOB, CID = (Incarnation(UUID(int=number), 1) for number in (1, 2, 3))
ADMISSION = 7
PLACE, OTHER = ReturnPlace(0, 1, ADMISSION), ReturnPlace(1, 1, ADMISSION)


class Around:
    """A primary of one partition; Bob is in the set, and Cid comes back."""

    def __init__(self) -> None:
        self.now = 100.0
        self.streams = Streams()
        self.streams.open(0, 1, [BOB], self.now)
        self.suggested: list[tuple[Any, tuple[Guard, ...]]] = []
        self.started: list[Return] = []
        self.closed: set[int] = set()
        self.told: list[Any] = []
        self.outflow = cast(Any, SimpleNamespace(tell=lambda *said: self.told.append(said)))
        self.log = cast(Any, SimpleNamespace(state=state_of(), failure=None))
        self.marks: dict[int, PartitionMark] = {}
        checkpointer = SimpleNamespace(marks=self.marks)
        files: Any = SimpleNamespace(
            keeper=SimpleNamespace(directory=None),
            checkpointer=checkpointer,
            kv=SimpleNamespace(size_used=lambda: 12 * FILLED_BYTES),
        )
        partitions: Any = SimpleNamespace(is_open=lambda partition: partition not in self.closed)
        decisions: Any = SimpleNamespace(suggest=self._suggest)
        tasks: Any = SimpleNamespace(begin=self._begin)
        self.here = Supplies(
            ME, files, self.log, partitions, self.streams, self.outflow, decisions,
            lambda: self.now, lambda _point: None, lambda _partition: None, tasks,
        )  # fmt: skip
        self.decide(copies())

    def _begin(self, _work: object, returning: Return) -> bool:
        self.started.append(returning)
        return True

    def _suggest(self, change: Any, guards: tuple[Guard, ...] = ()) -> int:
        self.suggested.append((change, guards))
        return len(self.suggested)

    def decide(self, copies: PartitionCopies, *away: Incarnation) -> None:
        members = {
            one.member: KnownMember(
                member=one.member, address="", since=1, boot=1, present=one not in away
            )
            for one in (ME, BOB, CID)
        }
        self.here.decided(Topology(index=9, members=members, partitions=(copies,)))

    def add(self, count: int, size: int = 100) -> None:
        """Add items to the stream, which are durable here."""
        for _ in range(count):
            record = CommitUptoRecord(rows=(Upto(0, 1, 1),))
            kept = Kept(record, 0, 0, size, None)
            self.streams.logged(0, self.streams.add(0, kept, self.now))
        self.streams.advance()

    def stored(self, copy: Incarnation, number: int) -> None:
        admission = ADMISSION if copy == CID else BY_TAKEOVER
        self.streams.stored(copy, StoredUpto(0, admission, 1, number), self.now)

    def admit(self) -> None:
        self.streams.admit(0, CID, ADMISSION, self.now)

    def counts(self) -> bool:
        stream = self.streams.get(0)
        assert stream is not None
        return stream.followers[CID].counts

    def returning(self) -> Return:
        return Return(CID, self.outflow, lambda: self.now, lambda _copy, _place: True)


def copies(**more: Any) -> PartitionCopies:
    """Return a partition to which Cid was admitted."""
    fields: dict[str, Any] = {
        "row": PartitionRow(partition=0, version=3, replicas=(ME.member, BOB.member, CID.member)),
        "epoch": 1,
        "author": ME,
        "in_sync": (ME, BOB),
        "changed": 7,
        "opened": True,
        "moving": (MovingCopy(CID, ADMISSION),),
    }
    return PartitionCopies(**(fields | more))


ADDED = copies(in_sync=(ME, BOB, CID), moving=())
GUARDS = (Guard(0, 1, 7),)


# ------------------------------------------------------------------ who comes back


def reported(at: Around, copy: Incarnation = CID, *, partition: int = 0, epoch: int = 1) -> bool:
    """Let a copy report; tell whether it is brought back."""
    at.here.reported(report_of(state_of(), partition, copy=copy, epoch=epoch))
    return bool(at.started)


def test_who_is_there_of_the_set_is_asked_for_what_the_own_log_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, asked, head = Around(), list[Any](), state_of()
    there = LogReach(LogHolder(BOB), 1)

    async def reaches(places: Any) -> Any:
        asked.append(places)
        return {0: [there]}

    async def run(_what: str, work: Callable[[], Any]) -> Any:
        return work()

    monkeypatch.setattr(supplying, "oldest_state", lambda _wal: head.record(1))
    monkeypatch.setattr(at.here.borrowing, "reaches", reaches)
    at.here._files = cast(Any, SimpleNamespace(environment=SimpleNamespace(run=run)))
    at.decide(copies(in_sync=(ME, BOB, CID), epoch=4), CID)
    at.log.state.counters[0].update(0, 20)
    report = report_of(state_of(), 0, copy=CID, epoch=4)
    mine = LogReach(LogHolder(ME), 1)
    assert trio.run(at.here._reaches, {0: report}) == {0: [mine]}
    assert asked == []
    head.counters[0].update(0, 5)
    assert trio.run(at.here._reaches, {0: report}) == {0: [mine._replace(first=6), there]}
    assert asked == [{BOB: [OpenPlace(0, 4)]}]

    def unreadable(_wal: object) -> Any:
        raise CorruptLogError("a hole", kind="gap", segment=1, offset=0)

    monkeypatch.setattr(supplying, "oldest_state", unreadable)
    assert trio.run(at.here._reaches, {0: report}) == {0: [there]}, "others are asked all the same"


def test_a_copy_that_reports_is_brought_back_once() -> None:
    at = Around()
    assert reported(at)
    assert reported(at)
    [returning] = at.started
    assert (returning.copy, [*returning.reports]) == (CID, [0])


ELSEWHERE = copies(row=PartitionRow(partition=0, version=3, replicas=(ME.member, BOB.member)))
UNDER_ANOTHER_BOOT = copies(in_sync=(ME, BOB, Incarnation(CID.member, 0)), moving=())
NOT_TO_COME: dict[str, Callable[[Around], object]] = {
    "it is of no row": lambda at: at.decide(ELSEWHERE),
    "it is of the set": lambda at: at.decide(ADDED),
    "it is of the set under another boot": lambda at: at.decide(UNDER_ANOTHER_BOOT),
    "it has gone": lambda at: at.decide(copies(), CID),
    "its partition is not open": lambda at: at.closed.add(0),
    "there is no stream": lambda at: at.streams.close(0),
    "the log is broken": lambda at: setattr(at.log, "failure", OSError()),
}


@pytest.mark.parametrize("change", NOT_TO_COME.values(), ids=NOT_TO_COME)
def test_nobody_is_brought_back_who_is_not_to_come(change: Callable[[Around], object]) -> None:
    at = Around()
    change(at)
    assert not reported(at)


def test_a_report_of_another_epoch_or_partition_or_boot_brings_nobody_back() -> None:
    at = Around()
    assert not reported(at, epoch=2)
    assert not reported(at, partition=1)
    assert not reported(at, Incarnation(CID.member, 2))


# ------------------------------------------------------------------ the moment of an admission


def pending(number: int) -> PrepareRecord:
    return PrepareRecord(
        tx_id=b"pending %08d" % number, attempt=1, near=(ME.member.bytes, 1), time=5, home=0,
        participants=(Participant(0, 1, 1), Participant(1, 1, 1)), run=Run(0, 1, number, 1),
        namespaces=16, keys=[b"k"], values=[b"v"],
    )  # fmt: skip


def behind(at: Around) -> Report:
    """Let the primary be at 9, with 7 and 9 pending; return the report of a copy at 4.

    It has prepared something that nobody else knows of.
    """
    state = at.log.state
    state.counters[0].prepared(0, 9)
    for start, delta in ((0, 6), (7, 1)):
        state.counters[0].update(start, delta)
    for number in (7, 9):
        state.copies.prepared(0).add(pending(number))
    mine = PreparedHere(b"unknown".ljust(16), 1, Run(0, 1, 5, 1), 5, 2)
    return Report(
        copy=CID, partition=0, epoch=1, lwm=4, ranges=(), hwm=5, epochs=((1, 1),), pending=(mine,)
    )


REACHES = [LogReach(LogHolder(ME), 1)]


def admitted(at: Around, report: Report) -> tuple[Admitted | None, dict[Incarnation, Any]]:
    wanted: dict[Incarnation, dict[ReturnPlace, WantedNumbers]] = {}
    row = at.here._admitted(at.returning(), report, REACHES, wanted, PENDING_BYTES_MAX)
    return row, wanted


def test_an_admission_tells_what_both_have_what_is_pending_and_where_the_stream_goes_on() -> None:
    at = Around()
    at.add(3)
    row, wanted = admitted(at, behind(at))
    assert row is not None
    assert (row.place, row.kind, row.begin) == (PLACE, SupplyKind.HISTORICAL, 4)
    assert row.record == AdmitRecord(
        partition=0,
        admission=ADMISSION,
        epochs=((1, 1),),
        lwm=4,
        ranges=(),
        hwm=9,
        dropped=(b"unknown".ljust(16),),
    )
    assert row.pending == (pending(7), pending(9))
    assert wanted == {ME: {PLACE: WantedNumbers([(5, 6), (8, 8)], ((1, 1),))}}
    stream = at.streams.get(0)
    assert stream is not None
    follower = stream.followers[CID]
    assert (follower.admission, follower.sent, follower.counts) == (ADMISSION, 4, False)


@pytest.mark.parametrize(
    ("ranges", "comes"),
    [((), True), (((4, 2),), True), (((4, 3),), False), (((8, 1),), False), (((9, 1),), True)],
)
def test_a_copy_that_has_applied_what_is_pending_here_has_to_wait(
    ranges: tuple[tuple[int, int], ...], comes: bool
) -> None:
    # It was told that all groups had prepared; here nobody knows that yet.
    at = Around()
    report = replace(behind(at), ranges=ranges, hwm=10)
    at.here.reported(report)
    assert bool(at.started) is comes
    at.log.state.copies.pending.clear()
    at.here.reported(report)
    assert at.started, "it has ended here, too"


def test_a_copy_below_whose_numbers_something_is_pending_here_has_to_wait() -> None:
    at = Around()
    at.here.reported(replace(behind(at), lwm=7, hwm=8))
    assert at.started == []


def test_what_is_remembered_goes_with_an_admission() -> None:
    at = Around()
    report = behind(at)
    one = Committed(b"t" * 16, 1, (b"n" * 16, 1), 7, Run(0, 1, 3, 1), (Participant(0, 1, 1),))
    at.log.state.copies.take_outcomes(OutcomesRecord(partition=0, committed=(one,)))
    row, _ = admitted(at, report)
    assert row is not None
    assert [known.committed for known in row.outcomes] == [(one,)]


def no_history(at: Around, report: Report) -> Report:
    at.here.ways.lacks(CID, [0], ME)
    return report


def it_is_out(at: Around, report: Report) -> Report:
    at.decide(copies(moving=()))
    return report


def it_has_gone(at: Around, report: Report) -> Report:
    at.decide(copies(), CID)
    return report


def of_another_epoch(_at: Around, report: Report) -> Report:
    return replace(report, epoch=2)


@pytest.mark.parametrize(
    "change",
    [no_history, it_is_out, it_has_gone, of_another_epoch],
    ids=lambda one: one.__name__,
)
def test_nobody_is_admitted_to_what_is_not_so_any_more(
    change: Callable[[Around, Report], Report],
) -> None:
    at = Around()
    assert admitted(at, change(at, behind(at))) == (None, {})
    stream = at.streams.get(0)
    assert stream is not None
    assert CID not in stream.followers


def test_a_copy_waits_until_what_is_pending_fits_into_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for more, fits in ((0, True), (1, False)):
        size = PENDING_BYTES_MAX // 2 + more
        monkeypatch.setattr(supplying, "record_bytes", lambda _one, size=size: size)
        at = Around()
        row, _ = admitted(at, behind(at))
        assert (row is not None) is fits


def test_what_is_pending_goes_with_the_admissions_of_one_moment_as_far_as_it_may_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All of it is said again over a new connection, which was hung up, for there was too much.
    size, rooms = PENDING_BYTES_MAX // 2, []
    monkeypatch.setattr(supplying, "record_bytes", lambda _one: size)
    monkeypatch.setattr(supplying, "admit_message", lambda rows: rows)
    at = Around()
    report = behind(at)
    at.log.put_barrier = lambda then: then()

    def row_of(_returning: Return, report: Report, *about: Any) -> Admitted | None:
        rooms.append(about[-1])
        place = ReturnPlace(report.partition, 1, ADMISSION)
        return Admitted(place=place, kind=SupplyKind.HISTORICAL, pending=(pending(7),))

    monkeypatch.setattr(at.here, "_admitted", row_of)
    reports = {partition: replace(report, partition=partition) for partition in range(3)}
    with pytest.raises(StoppedError):
        trio.run(at.here._admit, at.returning(), reports, dict.fromkeys(reports, REACHES))
    assert rooms == [PENDING_BYTES_MAX, size, 0]


# ------------------------------------------------------------------ into the set


async def step() -> None:
    await trio.sleep(0.1)


def joining(at: Around, steps: Callable[[], Any]) -> list[BaseException]:
    """Let Cid into the set, while ``steps`` are gone; return how that ended, if it did not."""
    found: list[BaseException] = []

    async def join() -> None:
        try:
            await at.here._join(at.returning(), [0])
        except StoppedError as error:
            found.append(error)

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            await steps()

    trio.run(scenario, clock=MockClock(autojump_threshold=0))
    return found


def test_a_copy_is_added_once_it_has_all_that_there_was_when_it_joined() -> None:
    at = Around()
    at.admit()
    at.stored(BOB, 1)
    at.add(JOIN_ITEMS + 1)
    last = JOIN_ITEMS + 2

    async def steps() -> None:
        await step()
        assert not at.counts(), "it lacks too much"
        at.stored(CID, 2)
        await step()
        assert at.counts(), "from here on writes wait for it"
        at.stored(CID, last - 1)
        at.add(1)
        await step()
        assert at.suggested == []
        at.stored(CID, last)
        await step()
        assert at.suggested == [(CopiesAdded(copy=CID, partitions=(0,)), GUARDS)]
        at.decide(ADDED)

    assert joining(at, steps) == []


def test_a_copy_joins_once_all_others_have_what_was_before_its_admission() -> None:
    at = Around()
    at.add(3)
    at.admit()

    async def steps() -> None:
        at.stored(BOB, 3)
        await step()
        assert not at.counts()
        at.stored(BOB, 4)
        await step()
        assert at.counts()
        at.decide(ADDED)

    assert joining(at, steps) == []


def test_a_copy_that_stores_nothing_or_follows_no_more_is_not_added() -> None:
    at = Around()
    at.admit()
    at.stored(BOB, 1)
    at.add(JOIN_ITEMS + 1)

    async def waits() -> None:
        await trio.sleep(PATIENCE_S + 1)

    [error] = joining(at, waits)
    assert "it stays behind" in str(error)
    assert not at.counts()

    at.stored(CID, 2)
    [error] = joining(at, waits)
    assert "it does not store what is written" in str(error)
    assert at.suggested == []

    async def leaves() -> None:
        at.streams.keep(0, [BOB])

    [error] = joining(at, leaves)
    assert "does not follow" in str(error)


def test_a_copy_whose_addition_is_refused_begins_again() -> None:
    at = Around()
    at.admit()
    at.stored(BOB, 1)

    async def steps() -> None:
        await step()
        at.here.refused(len(at.suggested))

    [error] = joining(at, steps)
    assert "the sets have changed" in str(error)


# ------------------------------------------------------------------ one step after the other


def test_a_copy_is_admitted_by_a_new_decision_and_then_supplied_and_then_joins() -> None:
    at, done = Around(), list[str]()
    at.decide(copies(opened=False))

    async def admit(*_about: object) -> dict[Incarnation, dict[ReturnPlace, WantedNumbers]]:
        done.append("admit")
        return {ME: {PLACE: WantedNumbers([(1, 1)], ((1, 1),))}}

    async def send(*_about: object) -> None:
        done.append("send")

    async def join(_returning: Return, partitions: list[int]) -> None:
        assert partitions == [0]
        done.append("join")
        raise StoppedError("it stays behind")

    here: Any = at.here
    here._admit, here._history.send, here._join = admit, send, join
    here._announce = lambda partition: done.append(f"announce {partition}")
    report = behind(at)

    async def bring_back() -> None:
        with pytest.raises(StoppedError):
            await here._by_history(at.returning(), {0: report}, {0: []})

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bring_back)
            await step()
            assert (done, at.suggested) == (["announce 0"], []), (
                "nobody has decided that it is open"
            )
            at.decide(copies())
            await step()
            assert at.suggested == [(CopiesAdmitted(copy=CID, partitions=(0,)), GUARDS)]
            assert done == ["announce 0"], "it was admitted, but by a decision before"
            at.decide(copies(moving=(MovingCopy(CID, 10),), changed=10))
            await step()
        assert done == ["announce 0", "admit", "send", "join"]
        removed = CopiesRemoved(copy=CID, partitions=(0,))
        assert at.suggested[1:] == [(removed, (Guard(0, 1, 10),))]

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_what_comes_by_history_goes_before_full_copies_and_of_these_some_at_a_time() -> None:
    at, done = Around(), list[tuple[str, list[int]]]()
    here, returning = cast(Any, at.here), at.returning()
    reports = {
        partition: replace(behind(at), partition=partition) for partition in range(FILLED_MAX + 4)
    }
    here._topology = Topology(partitions=(copies(),) * len(reports))
    here._may_return = lambda _copy, _copies, _epoch: True

    async def reaches(reports: dict[int, Report]) -> dict[int, Any]:
        return dict.fromkeys(reports)

    def choice(report: Report, _reaches: object) -> Any:
        return SimpleNamespace(
            kind=SupplyKind.HISTORICAL if report.partition == 5 else SupplyKind.FULL
        )

    async def by_history(_returning: Return, known: dict[int, Report], _head: object) -> None:
        done.append(("history", [*known]))

    async def fill(_returning: Return, full: list[Report]) -> None:
        done.append(("full", [one.partition for one in full]))
        returning.reports[later[0]] = newer

    first = [partition for partition in reports if partition != 5][:FILLED_MAX]
    later = [partition for partition in reports if partition not in (*first, 5)]
    newer = replace(reports[later[0]], lwm=5)
    here._reaches = reaches
    here.ways.choice = choice
    here._by_history, here._fill = by_history, fill
    returning.reports = dict(reports)
    trio.run(here._take_reports, returning)
    assert done == [("history", [5]), ("full", first)]
    left = {partition: reports[partition] for partition in later[1:]}
    assert returning.reports == {later[0]: newer, **left}
    assert returning.busy == set()


def test_full_copies_of_many_bytes_are_sent_some_at_a_time() -> None:
    at = Around()
    here = cast(Any, at.here)
    reports = [replace(behind(at), partition=partition) for partition in range(6)]
    assert here._filled_together(reports) == 6, "nothing is there"
    at.marks.update(  # 1,200 pairs in all: a hundred of them are as much as goes together
        (partition, replace(PartitionMark.empty(), count=count))
        for partition, count in enumerate((101, 5, 95, 1, 98, 2, 898))
    )
    sent = []
    while reports:
        count = here._filled_together(reports)
        sent.append([report.partition for report in reports[:count]])
        reports = reports[count:]
    assert sent == [[0], [1, 2], [3, 4], [5]]


def test_full_copies_that_are_not_sent_with_others_wait_behind_what_is_reported_meanwhile() -> None:
    at, sent, explained = Around(), list[list[int]](), list[int]()
    here, returning = cast(Any, at.here), at.returning()
    reports = {partition: replace(behind(at), partition=partition) for partition in range(5)}
    at.marks.update(
        (partition, replace(PartitionMark.empty(), count=50)) for partition in reports
    )  # 1,200 pairs in all
    at.marks[9] = replace(PartitionMark.empty(), count=950)
    here._topology = Topology(partitions=(copies(),) * len(reports))
    here._may_return = lambda _copy, _copies, _epoch: True
    newer = replace(reports[3], lwm=5)

    async def reaches(reports: dict[int, Report]) -> dict[int, Any]:
        return dict.fromkeys(reports)

    async def fill(_returning: Return, full: list[Report]) -> None:
        sent.append([one.partition for one in full])
        returning.reports[3] = newer

    here._reaches, here._fill = reaches, fill
    here.ways.choice = lambda _report, _reaches: SimpleNamespace(kind=SupplyKind.FULL)
    here.ways.explain = lambda _copy, partition, _choice: explained.append(partition)
    returning.reports = dict(reports)
    trio.run(here._take_reports, returning)
    assert sent == [explained] == [[0, 1]]
    assert returning.reports == {2: reports[2], 3: newer, 4: reports[4]}


def test_of_full_copies_of_few_pairs_there_is_a_number_that_are_sent_together() -> None:
    at = Around()
    here = cast(Any, at.here)
    reports = [replace(behind(at), partition=partition) for partition in range(FILLED_MAX + 3)]
    at.marks[FILLED_MAX + 1] = replace(PartitionMark.empty(), count=1)
    assert here._filled_together(reports) == FILLED_MAX
    assert here._filled_together(reports[:FILLED_MAX]) == FILLED_MAX
    assert here._filled_together([]) == 0


def test_who_was_sent_all_there_is_may_report_on_that_while_the_next_one_is_sent() -> None:
    at, done = Around(), list[tuple[int, set[int]]]()
    here, returning = cast(Any, at.here), at.returning()
    report = behind(at)
    here._topology = Topology(index=9, partitions=(copies(),) * 2)
    here._may_return = lambda _copy, _copies, _epoch: True
    returning.busy = {0, 1}
    at.here.ways.lacks(CID, [0, 1], ME)

    async def begin(_returning: Return, places: list[ReturnPlace]) -> None:
        assert [one.admission for one in places] == [9, 10]

    async def send(_returning: Return, place: ReturnPlace) -> None:
        done.append((place.partition, {*returning.busy}))

    here._filling.begin, here._filling.send = begin, send
    trio.run(here._fill, returning, [report, replace(report, partition=1)])
    assert done == [(0, {0, 1}), (1, {1})]
    assert at.here.ways.choice(report, REACHES).kind is SupplyKind.HISTORICAL


# ------------------------------------------------------------------ who comes back no more


def test_who_is_waited_for_is_until_it_is_decided_that_it_is_out() -> None:
    removed = (CopiesRemoved(copy=CID, partitions=(0,)), GUARDS)
    for counts in (False, True):
        at = Around()
        at.admit()
        if counts:
            at.streams.join(0, CID)
        at.now += ASK_AGAIN_S
        at.here.tick()
        at.here.tick()
        assert at.suggested == [removed], "it is asked for again a little later"
        stream = at.streams.get(0)
        assert stream is not None
        assert (CID in stream.followers) is counts


def test_a_copy_on_its_way_stays_unless_too_much_is_kept_for_it() -> None:
    for size, counts, goes in (
        (BEHIND_BYTES_MAX - 1, False, False),
        (BEHIND_BYTES_MAX + 1, False, True),
        (BEHIND_BYTES_MAX + 1, True, False),
    ):
        at = Around()
        reported(at)
        at.started[0].busy = {0}
        at.admit()
        at.stored(BOB, 1)
        at.add(1, size)
        at.stored(BOB, 2)
        if counts:
            at.streams.join(0, CID)
        at.streams.advance()
        at.now += ASK_AGAIN_S
        at.here.tick()
        assert bool(at.suggested) is goes


# ------------------------------------------------------------------ what it was sent


def test_what_was_sent_is_kept_until_all_that_follows_is_demanded() -> None:
    at = Around()
    returning = at.returning()
    for place in (PLACE, OTHER):
        returning.expect(place)
    both: Any = ["both"]
    returning.tell(both, [Demanded(PLACE, 2), Demanded(OTHER, 2)], 5)
    assert (returning.unanswered(), returning.bytes_under_way) == ([both], 5)
    returning.demands([Demanded(PLACE, 2), Demanded(OTHER, 1)])
    assert returning.unanswered() == [both]
    returning.demands([Demanded(PLACE, 1), Demanded(ReturnPlace(2, 1, 1), 9)])
    returning.demands([Demanded(OTHER, 2)])
    assert (returning.unanswered(), returning.bytes_under_way) == ([], 0), "a late word is no news"


def test_who_waits_for_an_answer_hears_that_it_is_of_no_use() -> None:
    at, may_go_on = Around(), {PLACE}
    returning = Return(CID, at.outflow, trio.current_time, lambda _copy, place: place in may_go_on)
    returning.expect(PLACE)
    told: Any = ["told"]
    returning.tell(told, [Demanded(PLACE, 1)])

    async def scenario() -> None:
        begun = trio.current_time()
        with pytest.raises(StoppedError, match="says nothing any more"):
            await returning.answered()
        assert PATIENCE_S < trio.current_time() - begun <= 2 * PATIENCE_S
        async with trio.open_nursery() as nursery:

            async def busy() -> None:
                for _ in range(4):
                    await trio.sleep(PATIENCE_S - 1)
                    returning.demands([Demanded(PLACE, 0)])
                may_go_on.clear()
                returning.heard()

            nursery.start_soon(busy)
            with pytest.raises(StoppedError, match="partition 0 has changed"):
                await returning.answered()

    trio.run(scenario, clock=MockClock(autojump_threshold=0))
