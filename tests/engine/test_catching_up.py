"""What a copy that comes back does, word by word: no network, no disk, and no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from support.takeovers import state_of
from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import (
    Incarnation,
    KnownMember,
    MovingCopy,
    PartitionCopies,
    Topology,
)
from tidelog.checkpoints.copies import CopyState
from tidelog.engine.net.frames import Message
from tidelog.engine.net.kinds import BY_NUMBER
from tidelog.engine.node import catching_up
from tidelog.engine.node.catching_up import AGAIN_S, CatchingUp
from tidelog.engine.node.tasks import Tasks
from tidelog.engine.replication.following import Following
from tidelog.engine.replication.reports import reports_of
from tidelog.engine.replication.returning import (
    Admitted,
    Demanded,
    ReturnPlace,
    SupplyPiece,
    demanded_of,
    new_digest,
)
from tidelog.rebalance.choosing import SupplyKind
from tidelog.wal.records import (
    AdmitRecord,
    ClearRecord,
    Columns,
    Participant,
    PrepareRecord,
    Record,
    Run,
    Supplied,
    SuppliedRecord,
    encode_record,
)

ME, BOB, CID = (Incarnation(UUID(int=number), 1) for number in (1, 2, 3))
ADMISSION = 7
PLACE = ReturnPlace(0, 1, ADMISSION)


class Log:
    """What was given to the log, which carries it when a test says so."""

    def __init__(self) -> None:
        self.state = state_of()
        self.failure: Exception | None = None
        self.is_full = False
        self.path = "store"
        self.unsaid: set[int] = set()
        self.noted: list[bytes] = []
        self.context = SimpleNamespace(note_given_id=self.noted.append)
        self.queued: list[tuple[list[Record], Callable[[], object], Any, Any]] = []

    def put_barrier(self, then: Callable[[], object]) -> None:
        self.queued.append(([], then, None, None))

    def put_records(
        self, records: Any, then: Callable[[], object], undo: Any = None, logged: Any = None
    ) -> None:
        self.queued.append((list(records), then, undo, logged))

    def carry(self, written: Callable[[Record], Record] = lambda record: record) -> list[Record]:
        """Write what is queued, as ``written`` has it; return that."""
        queued, self.queued = self.queued, []
        for records, then, _, logged in queued:
            for one in map(written, records):
                self.state.apply(1, one)
                if logged is not None:
                    logged(one, encode_record(one))
            then()
        return [one for records, *_ in queued for one in records]

    def lose(self) -> None:
        """Let nothing that is queued get into the log."""
        queued, self.queued = self.queued, []
        for _, _, undo, _ in queued:
            if undo is not None:
                undo()


class Around:
    """A copy of partition 0, which has numbers 1 to 3, and which Bob serves."""

    def __init__(self) -> None:
        self.log, self.now = Log(), 100.0
        self.kept = True
        self.log.state.counters[0].update(0, 3)
        self.told: list[tuple[UUID, Message]] = []
        self.followed: dict[int, Following] = {}
        log: Any = self.log
        self.here = CatchingUp(
            ME,
            log,
            SimpleNamespace(tell=lambda *said: self.told.append(said)),  # type: ignore[arg-type]
            self.followed,
            cast(Any, None),
            cast(Any, self),
            lambda: self.now,
            lambda _point: None,
            Tasks(),
        )
        self.began: list[tuple[list[ReturnPlace], Incarnation]] = []
        self.filling: ReturnPlace | None = None
        self.stopped: list[int] = []
        self.here.taking_in = SimpleNamespace(  # type: ignore[assignment]
            tick=lambda: None,
            place=lambda partition: self.filling if partition == 0 else None,
            begin=lambda places, sender: self.began.append((list(places), sender)),
            stop=self.stopped.append,
            unheard=lambda _member: [],
        )
        self.topology = Topology()

    def has_kept(self, _partition: int) -> bool:
        return self.kept

    def decide(self, copies: PartitionCopies, *away: Incarnation) -> None:
        members = {
            one.member: KnownMember(
                member=one.member, address="", since=1, boot=1, present=one not in away
            )
            for one in (ME, BOB, CID)
        }
        before, self.topology = self.topology, Topology(members=members, partitions=(copies,))
        self.here.decided(before, self.topology)

    def tick(self) -> None:
        self.now += AGAIN_S
        self.here.tick()

    def said(self) -> list[tuple[UUID, str, Any]]:
        """Return to whom what was told since the last call."""
        told, self.told = self.told, []
        read: dict[str, Callable[[Message], Any]] = {
            "report": partial(reports_of, copy=ME),
            "demand": demanded_of,
        }
        kinds = [(member, BY_NUMBER[message[0]].name, message) for member, message in told]
        return [(member, kind, read[kind](message)) for member, kind, message in kinds]

    def demands(self) -> list[int]:
        """Return which pieces were demanded of Bob since the last call."""
        said = self.said()
        assert all((to, kind) == (BOB.member, "demand") for to, kind, _ in said)
        assert all(row.place == PLACE for _, _, rows in said for row in rows)
        return [row.number for _, _, rows in said for row in rows]


def copies(*, moving: int = ADMISSION, **more: Any) -> PartitionCopies:
    """Return a partition of Bob's in whose row this member is, and to which it was admitted."""
    fields: dict[str, Any] = {
        "row": PartitionRow(partition=0, version=2, replicas=(BOB.member, ME.member)),
        "epoch": 1,
        "author": BOB,
        "in_sync": (BOB,),
        "changed": 7,
        "opened": True,
        "moving": (MovingCopy(ME, moving),) if moving else (),
    }
    return PartitionCopies(**(fields | more))


def around(*, moving: int = ADMISSION, **more: Any) -> Around:
    found = Around()
    found.decide(copies(moving=moving, **more))
    return found


ADMIT = AdmitRecord(
    partition=0, admission=ADMISSION, epochs=((1, 1),), lwm=2, ranges=(), hwm=9, dropped=()
)


def pending(number: int) -> PrepareRecord:
    return PrepareRecord(
        tx_id=b"pending %08d" % number, attempt=1, near=(BOB.member.bytes, 1), time=5, home=0,
        participants=(Participant(0, 1, 1), Participant(1, 1, 1)), run=Run(0, 1, number, 1),
        namespaces=16, keys=[b"k"], values=[b"v"],
    )  # fmt: skip


def admission(**more: Any) -> Admitted:
    fields: dict[str, Any] = {
        "place": PLACE,
        "kind": SupplyKind.HISTORICAL,
        "begin": 4,
        "record": ADMIT,
    }
    return Admitted(**(fields | more))


def missed(first: int, last: int, *, epoch: int = 1) -> SuppliedRecord:
    count = last - first + 1
    updates = Columns(16, [b"key%d" % n for n in range(count)], [b"value"] * count)
    run = Run(0, epoch, first, count)
    return SuppliedRecord(
        partition=0,
        admission=ADMISSION,
        source=BOB.member.bytes,
        transactions=(Supplied(b"supplied %07d" % first, 1, run, 5, updates),),
        closed=(),
    )


def pieces(*records: SuppliedRecord) -> list[SupplyPiece]:
    """Return the pieces that bring some records, and a digest with the last one."""
    found, digest = [], new_digest()
    for number, record in enumerate(records, 1):
        digest.update(encode_record(record))
        last = number == len(records)
        found.append(SupplyPiece(PLACE, number, last, record, digest.digest() if last else b""))
    return found


def admitted() -> Around:
    """Return a copy whose ADMIT is durable: it lacks 3 to 9, and wants the first piece."""
    found = around()
    found.here.admitted(BOB, [admission()])
    found.log.carry()
    assert found.demands() == [1]
    return found


# ------------------------------------------------------------------ reports


def test_what_a_copy_has_is_told_behind_a_sync_and_again_while_nothing_comes_of_it() -> None:
    at = around(moving=0)
    at.tick()
    assert at.said() == []
    at.log.carry()
    [(to, kind, [report])] = at.said()
    assert (to, kind, report.copy, report.epoch, report.lwm) == (BOB.member, "report", ME, 1, 3)
    at.here.tick()
    at.log.carry()
    assert at.said() == [], "it was told just now"
    at.tick()
    at.log.carry()
    assert [kind for _, kind, _ in at.said()] == ["report"]


@pytest.mark.parametrize(
    "other",
    [
        {"row": PartitionRow(partition=0, version=2, replicas=(BOB.member, CID.member))},
        {"in_sync": (BOB, ME)},
        {"in_sync": (BOB, Incarnation(ME.member, 0))},
        {"author": ME},
    ],
    ids=["others shall hold it", "it counts", "it counts under another boot", "it is the author"],
)
def test_a_copy_that_is_not_to_come_back_says_nothing_and_takes_nothing(
    other: dict[str, Any],
) -> None:
    at = around(**other)
    at.tick()
    at.here.admitted(copies(**other).author, [admission(), admission(kind=SupplyKind.FULL)])
    assert at.log.queued == []
    assert at.began == []


def test_who_is_there_and_has_not_said_how_a_copy_comes_back_is_expected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Callable[[], bool]] = []
    monkeypatch.setattr(catching_up, "TakingIn", lambda *given: made.append(given[-1]))
    at = around(moving=0)
    [expects] = made
    assert expects()
    at.filling = PLACE
    assert not expects(), "it comes in full"
    at.filling = None
    at.here.admitted(BOB, [admission()])
    assert expects(), "it was admitted by another number"
    at.decide(copies())
    at.here.admitted(BOB, [admission()])
    assert not expects(), "it comes by history"
    at = around(moving=0)
    at.decide(copies(in_sync=(BOB, ME)))
    assert not made[-1](), "it counts by now"
    at = around(in_sync=(BOB, ME))
    assert not made[-1](), "it counts"
    at = Around()
    at.decide(copies(moving=0), BOB)
    assert not made[-1](), "nobody is there"


def test_nothing_is_told_to_who_has_gone_nor_with_a_log_that_is_broken_or_lags() -> None:
    at = Around()
    at.decide(copies(moving=0), BOB)
    at.tick()
    assert at.log.queued == []
    at = around(moving=0)
    at.log.unsaid.add(0)
    at.tick()
    assert at.log.queued == []
    at.log.unsaid.clear()
    at.log.failure = OSError()
    at.tick()
    assert at.log.queued == []


def test_what_was_decided_while_a_report_waited_for_the_disk_makes_it_void() -> None:
    for then in (
        lambda at: at.decide(copies(moving=0, epoch=2, author=CID, in_sync=(CID,))),
        lambda at: at.decide(copies(moving=0, in_sync=(BOB, ME))),
        lambda at: at.log.unsaid.add(0),
        lambda at: setattr(at, "filling", PLACE),
    ):
        at = around(moving=0)
        at.tick()
        then(at)
        at.log.carry()
        assert at.said() == []


# ------------------------------------------------------------------ admitted


def test_an_admission_is_logged_with_what_is_pending_before_anything_is_demanded() -> None:
    at = around()
    at.here.admitted(BOB, [admission(pending=(pending(8), pending(9)))])
    assert at.log.noted == [pending(8).tx_id, pending(9).tx_id]
    at.here.admitted(BOB, [admission()])
    assert at.here.unheard(BOB.member) == []
    assert at.said() == []
    assert at.log.carry() == [ADMIT, pending(8), pending(9)]
    assert at.demands() == [1]
    at.here.admitted(BOB, [admission()])
    assert at.log.queued == [], "it is logged once"
    assert at.demands() == [1], "and answered each time"
    assert at.here.unheard(BOB.member) == [Demanded(PLACE, 1)]
    assert at.here.unheard(CID.member) == []
    at.tick()
    assert at.log.queued == [], "it does not report any more"


def test_an_admission_that_did_not_get_into_the_log_is_followed_no_more() -> None:
    at = around()
    at.here.admitted(BOB, [admission()])
    assert 0 in at.followed
    at.log.lose()
    assert at.followed == {}
    assert at.said() == []


@pytest.mark.parametrize(
    ("sender", "row"),
    [
        (CID, admission()),
        (BOB, admission(place=ReturnPlace(0, 2, ADMISSION))),
        (BOB, admission(place=ReturnPlace(0, 1, ADMISSION - 1))),
        (BOB, admission(place=ReturnPlace(9, 1, ADMISSION))),
        (BOB, admission(record=None)),
        (BOB, admission(record=replace(ADMIT, lwm=4))),
        (BOB, admission(record=replace(ADMIT, ranges=((4, 1),)))),
        (CID, admission(kind=SupplyKind.FULL)),
        (BOB, admission(kind=SupplyKind.FULL, place=ReturnPlace(0, 2, ADMISSION))),
    ],
    ids=["of nobody who serves it", "of another epoch", "of an admission that is over",
         "of no partition", "without a record", "with more than is here",
         "with a range that is not here", "in full, of nobody who serves it",
         "in full, of another epoch"],
)  # fmt: skip
def test_an_admission_that_cannot_be_is_not_taken(sender: Incarnation, row: Admitted) -> None:
    at = around()
    at.here.admitted(sender, [row])
    assert (at.followed, at.log.queued, at.began) == ({}, [], [])


@pytest.mark.parametrize("state", [CopyState.NOT_WHOLE, CopyState.QUARANTINED])
def test_nothing_is_agreed_of_a_copy_that_counts_for_nothing(state: CopyState) -> None:
    at = around()
    at.log.state.copies.states[0] = state
    at.here.admitted(BOB, [admission(record=replace(ADMIT, lwm=0))])
    assert at.followed == {}
    at.here.admitted(BOB, [admission(kind=SupplyKind.FULL)])
    assert at.began == [([PLACE], BOB)]


def test_a_copy_that_is_to_come_in_full_follows_no_stream_any_more() -> None:
    at = admitted()
    at.here.admitted(BOB, [admission(kind=SupplyKind.FULL, place=ReturnPlace(0, 1, 9))])
    assert at.followed == {}
    assert at.began == [([ReturnPlace(0, 1, 9)], BOB)]


@pytest.mark.parametrize(
    ("change", "follows"),
    [
        ({}, True),
        ({"in_sync": (BOB, ME), "moving": 0}, True),
        ({"moving": 0}, False),
        ({"moving": ADMISSION + 1}, False),
    ],
    ids=["the same", "it is added", "it is out", "it is admitted anew"],
)
def test_a_copy_follows_while_its_admission_is_decided_and_once_it_is_added(
    change: dict[str, Any], follows: bool
) -> None:
    at = admitted()
    at.decide(copies(**change))
    assert (0 in at.followed) is follows


def test_a_full_copy_stops_coming_in_once_it_is_not_to_come_back() -> None:
    at = around(moving=0)
    at.filling = ReturnPlace(0, 1, 9)
    at.decide(copies(moving=0, changed=8))
    assert at.stopped == []
    at.decide(copies(moving=0, epoch=2, author=CID, in_sync=(CID,)))
    assert at.stopped == [0]


# ------------------------------------------------------------------ by history


def test_a_piece_is_demanded_once_all_before_it_is_durable() -> None:
    at = admitted()
    first, second = pieces(missed(3, 5), missed(6, 9))
    at.here.supplied(BOB, [first])
    assert at.log.noted == [b"supplied 0000003"]
    assert at.demands() == []
    at.here.supplied(BOB, [first])
    assert at.demands() == [], "it is on its way into the log"
    assert at.log.carry() == [first.record]
    assert at.demands() == [2]
    at.here.supplied(BOB, [first])
    assert (at.log.queued, at.demands()) == ([], [2]), "it is answered each time, and taken once"
    at.here.supplied(BOB, [second])
    assert at.log.carry() == [second.record]
    assert at.demands() == [3]
    assert at.log.state.copies.is_whole(0)
    assert at.log.state.counters[0].lwm == 9


def test_a_piece_that_is_out_of_its_turn_or_of_another_place_is_not_taken() -> None:
    at = admitted()
    first, second = pieces(missed(3, 5), missed(6, 9))
    for sender, piece in (
        (BOB, second),
        (CID, first),
        (BOB, first._replace(place=ReturnPlace(0, 2, ADMISSION))),
        (BOB, first._replace(place=ReturnPlace(0, 1, ADMISSION - 1))),
        (BOB, first._replace(place=ReturnPlace(1, 1, ADMISSION))),
        (BOB, first._replace(record=replace(first.record, partition=1))),
        (BOB, first._replace(record=replace(first.record, admission=ADMISSION - 1))),
        (BOB, first._replace(record=missed(3, 5, epoch=2))),
    ):
        at.here.supplied(sender, [piece])
        assert at.log.queued == []
    at.here.supplied(BOB, [first])
    assert at.log.carry() == [first.record]


def test_a_piece_that_did_not_get_into_the_log_lets_the_copy_begin_again() -> None:
    at = admitted()
    at.here.supplied(BOB, pieces(missed(3, 5), missed(6, 9))[:1])
    at.log.lose()
    assert at.followed == {}
    assert at.demands() == []


def test_a_copy_that_lacks_something_behind_the_last_piece_begins_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    at = admitted()
    at.here.supplied(BOB, pieces(missed(3, 5), missed(7, 9)))
    at.log.carry()
    assert at.demands() == []
    assert at.followed == {}
    assert "node.supply_lacks" in caplog.text
    at.tick()
    at.log.carry()
    [(_, kind, [report])] = at.said()
    assert (kind, report.lwm, report.ranges) == ("report", 5, ((6, 3),))


def test_nothing_is_said_of_a_copy_whose_log_has_something_else_before_that_says_so() -> None:
    at = admitted()
    other = missed(3, 9)
    [one] = other.transactions
    changed = one._replace(columns=Columns(16, one.columns.keys, [b"other"] * 7))
    [piece] = pieces(other)
    at.here.supplied(BOB, [piece])
    at.log.carry(lambda record: replace(record, transactions=(changed,)))  # type: ignore[type-var]
    assert at.demands() == []
    assert at.followed == {}
    at.tick()
    at.here.admitted(BOB, [admission()])
    assert at.followed == {}
    at.log.lose()
    at.tick()
    assert all(isinstance(one, ClearRecord) for one in at.log.carry())
    assert at.said() == []
    assert at.log.state.copies.states[0] is CopyState.NOT_WHOLE
    at.tick()
    at.log.carry()
    [(_, kind, [report])] = at.said()
    assert (kind, report.state) == ("report", CopyState.NOT_WHOLE)
