"""What one member is to the other copies, word by word: no network, no disk, and no clock.

The log is a list of what was given to it, which the tests carry when they like, or lose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from support.messages import example_of
from support.takeovers import state_of
from tidelog.affinity.changes import CopiesRemoved, EpochsOpened, MemberGone, Takeover
from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import (
    Incarnation,
    KnownMember,
    MovingCopy,
    PartitionCopies,
    Topology,
)
from tidelog.engine.agreement.coordinator import GIVE_IT_UP
from tidelog.engine.commit.entries import Commit
from tidelog.engine.data.full_pairs import PackedPairs
from tidelog.engine.net.frames import Message
from tidelog.engine.net.kinds import BY_NAME, BY_NUMBER, KINDS
from tidelog.engine.node import taking_over
from tidelog.engine.node.disk_watch import DISK_TIMEOUT_S, SLOW_S
from tidelog.engine.node.exchanges import ExchangeRecord
from tidelog.engine.node.groups import EARLY_MAX, ReplicaGroups
from tidelog.engine.node.leaving_out import ASK_AGAIN_S, REPLICA_TIMEOUT_S
from tidelog.engine.node.log import Haste
from tidelog.engine.node.room import LATE_S_MAX, LateWords
from tidelog.engine.node.transactions import Transactions
from tidelog.engine.replication.following import Following
from tidelog.engine.replication.merging import MergeError
from tidelog.engine.replication.reports import (
    Acknowledged,
    Report,
    report_message,
    report_of,
    reports_of,
    settle_message,
    settle_stored_message,
)
from tidelog.engine.replication.returning import (
    Admitted,
    Demanded,
    FillPiece,
    ReturnPlace,
    SupplyPiece,
    admit_message,
    demand_message,
    demanded_of,
    fill_message,
    supply_message,
)
from tidelog.engine.replication.stream import (
    Item,
    StoredUpto,
    Streamed,
    replicate_message,
    stored_message,
    stored_of,
)
from tidelog.engine.replication.streams import Streams
from tidelog.errors import TidelogError
from tidelog.rebalance.choosing import SupplyKind
from tidelog.wal.records import (
    CommitUptoRecord,
    Opened,
    OpenRecord,
    Participant,
    PrepareRecord,
    Run,
    SettleRecord,
    SuppliedRecord,
    Upto,
)

ME, BOB, CID = (Incarnation(UUID(int=number), 1) for number in (1, 2, 3))


def members(*away: Incarnation) -> dict[UUID, KnownMember]:
    return {
        one.member: KnownMember(
            member=one.member, address="", since=1, boot=1, present=one not in away
        )
        for one in (ME, BOB, CID)
    }


def copies(partition: int, *listed: Incarnation, epoch: int = 2, **more: Any) -> PartitionCopies:
    """Return what is decided of a partition; who is listed first is its author."""
    row = PartitionRow(partition=partition, version=1, replicas=tuple(o.member for o in listed))
    fields: dict[str, Any] = {
        "changed": 1,
        "opened": False,
        "in_sync": listed,
        "author": listed[0],
    } | more
    return PartitionCopies(row=row, epoch=epoch, **fields)


class Log:
    """What was given to the log."""

    def __init__(self) -> None:
        self.state = state_of()
        self.failure: TidelogError | None = None
        self.path = "store"
        self.context = SimpleNamespace(note_given_id=lambda tx_id: self.noted.append(tx_id))
        self.noted: list[bytes] = []
        self.barriers: list[Callable[[], object]] = []
        self.records: list[tuple[Any, Callable[[], object], Callable[[], object]]] = []
        self.commits: list[tuple[Commit, Haste]] = []
        self.forsaken: list[int] = []
        self.unsaid: set[int] = set()
        self.asked_disk_at = float("inf")
        self.is_full = False
        self.decides = self.tells = 0

    def put_barrier(self, then: Callable[[], object]) -> None:
        self.barriers.append(then)

    def put_records(
        self, records: Any, then: Callable[[], object], undo: Callable[[], object]
    ) -> None:
        self.records.append((list(records), then, undo))

    def put(self, commit: Commit, haste: Haste) -> None:
        self.commits.append((commit, haste))

    def fold(self, _records: object, then: Callable[[], object]) -> None:
        then()

    def decide(self) -> None:
        self.decides += 1

    def tell_decided(self) -> None:
        self.tells += 1

    def forsake(self, stream: Any) -> None:
        self.forsaken.append(stream.partition)


class Around:
    """What is around the groups of one member, and what these have said."""

    def __init__(self) -> None:
        self.log, self.streams, self.now = Log(), Streams(), 100.0
        self.told: list[tuple[UUID, Message]] = []
        self.suggested: list[tuple[Any, Any]] = []
        self.released: list[list[int]] = []
        self.targets: list[UUID | None] = []
        self.served: list[tuple[int, int]] = []
        self.pumps = self.applied = 0
        self.waits = False
        self.supplies, self.catching_up, self.leftovers = Supplies(), CatchingUp(), CatchingUp()
        self.transactions = Heard()
        self.followed: dict[int, Following] = {}
        self.connections: list[tuple[UUID, list[Any]]] = []
        self.decisions: Any = SimpleNamespace(
            suggest=self._suggest, release=self._release, is_led=True
        )
        groups = ReplicaGroups(
            ME,
            self.log,  # type: ignore[arg-type]
            SimpleNamespace(  # type: ignore[arg-type]
                opened=self.served.extend, is_open=bool, authored=self._authored
            ),
            self.streams,
            SimpleNamespace(  # type: ignore[arg-type]
                tell=lambda *said: self.told.append(said),
                pump=lambda: setattr(self, "pumps", self.pumps + 1),
                connected=lambda *said: self.connections.append(said),
            ),
            self.decisions,
            lambda: self.now,
            lambda _point: None,
            followed=self.followed,
            exchanges=ExchangeRecord(Topology()),
        )
        groups.readers = Readers(self)
        groups.supplies = self.supplies  # type: ignore[assignment]
        groups.catching_up = self.catching_up  # type: ignore[assignment]
        groups.leftovers = self.leftovers  # type: ignore[assignment]
        groups.transactions = self.transactions  # type: ignore[assignment]
        groups.emptying = SimpleNamespace(  # type: ignore[assignment]
            decided=lambda _topology: None, empties=lambda _partition: False
        )
        self.groups, self._index = groups, 0

    def _authored(self) -> list[PartitionCopies]:
        return [one for one in self.groups._topology.partitions if one.author == ME]

    def _suggest(self, change: Any, guards: Any = ()) -> int:
        self.suggested.append((change, guards))
        return len(self.suggested)

    def _release(self, partitions: list[int], target: UUID | None = None) -> None:
        self.released.append(partitions)
        self.targets.append(target)

    def decide(self, *partitions: PartitionCopies, away: Sequence[Incarnation] = ()) -> None:
        self._index += 1
        self.groups.decided(
            Topology(index=self._index, members=members(*away), partitions=partitions)
        )

    def heard(self, sender: Incarnation, *messages: Message, **more: Any) -> Any:
        """Let messages arrive over a connection of their own; return that."""
        line = connection(sender, **more)
        self.groups.arrived(line, messages)
        return line

    def carry(self) -> None:
        """Let the log write what it has: barriers first, which were queued before."""
        barriers, self.log.barriers = self.log.barriers, []
        records, self.log.records = self.log.records, []
        for then in [*barriers, *(then for _, then, _ in records)]:
            then()

    def said(self) -> list[tuple[UUID, str]]:
        """Return what was told since the last call: to whom, and which kind of message."""
        told, self.told = self.told, []
        return [(member, BY_NUMBER[message[0]].name) for member, message in told]

    def phase(self, partition: int = 0) -> object:
        found = {row[0]: row[1] for row in self.groups.blocked()}
        return found.get(partition)


def connection(sender: Incarnation, *, decided: int = 0) -> Any:
    line: Any = SimpleNamespace(
        other=SimpleNamespace(member=sender.member.bytes, boot=sender.boot),
        decided=decided, up=True, ended=0,
    )  # fmt: skip
    line.end = lambda: setattr(line, "ended", line.ended + 1)
    return line


class Supplies:
    """What a primary has heard about copies that come back."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.sent: dict[UUID, list[Message]] = {}
        self.topology = Topology()
        self.ticks = 0

    def reported(self, report: Report) -> None:
        self.heard.append((report,))

    def demanded(self, sender: Incarnation, rows: list[Demanded]) -> None:
        self.heard.append((sender, rows))

    def refused(self, request: int) -> None:
        self.heard.append((request,))

    def decided(self, topology: Topology) -> None:
        self.topology = topology

    def unanswered(self, member: UUID) -> list[Message]:
        return self.sent.get(member, [])

    def tick(self) -> None:
        self.ticks += 1


class CatchingUp:
    """What a copy that comes back has heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Incarnation, Any]] = []
        self.demands: dict[UUID, list[Demanded]] = {}
        self.topologies: list[tuple[Topology, Topology]] = []
        self.ticks = 0
        self.taking_in = self

    def admitted(self, sender: Incarnation, rows: list[Admitted]) -> None:
        self.heard.append(("admitted", sender, rows))

    def supplied(self, sender: Incarnation, pieces: list[SupplyPiece]) -> None:
        self.heard.append(("supplied", sender, pieces))

    def filled(self, sender: Incarnation, piece: FillPiece) -> None:
        self.heard.append(("filled", sender, piece))

    def decided(self, before: Topology, topology: Topology) -> None:
        self.topologies.append((before, topology))

    def unheard(self, member: UUID) -> list[Demanded]:
        return self.demands.get(member, [])

    def tick(self) -> None:
        self.ticks += 1


class Heard:
    """What transactions of several groups have heard, in order."""

    takes = staticmethod(Transactions.takes)

    def __init__(self) -> None:
        self.of_epochs: list[tuple[str, int]] = []
        self.topologies: list[Topology] = []
        self.messages: list[tuple[Incarnation, Message]] = []
        self.ticks = 0
        self.failures = 0

    def log_failed(self) -> None:
        self.failures += 1

    def sealed(self, partition: int) -> None:
        self.of_epochs.append(("sealed", partition))

    def opened(self, partition: int) -> None:
        self.of_epochs.append(("opened", partition))

    def decided(self, topology: Topology) -> None:
        self.topologies.append(topology)

    def arrived(self, sender: Incarnation, message: Message) -> None:
        self.messages.append((sender, message))

    def tick(self) -> None:
        self.ticks += 1


class Readers:
    def __init__(self, around: Around) -> None:
        self.around = around

    @property
    def waits(self) -> bool:
        return self.around.waits

    def applied(self) -> None:
        self.around.applied += 1

    def arrived(self, _sender: Incarnation, _message: Message) -> None:
        raise AssertionError("nobody says anything about reads")


def report(copy: Incarnation, epoch: int = 2, partition: int = 0) -> Report:
    return report_of(state_of(), partition, copy=copy, epoch=epoch)


def begun() -> Around:
    """Return an author that has sealed epoch 2, and waits for the reports of others."""
    around = Around()
    around.decide(copies(0, ME, BOB, CID))
    around.carry()
    assert around.phase() == "reports"
    return around


def listed() -> Around:
    """Return an author whose list is in its own log."""
    around = begun()
    for one in (BOB, CID):
        around.heard(one, report_message([report(one)]))
    assert around.phase() == "logging"
    around.carry()
    assert around.phase() == "storing"
    assert around.said() == [(BOB.member, "settle"), (CID.member, "settle")]
    return around


def opened() -> Around:
    """Return an author that has opened epoch 2, and told so."""
    around = listed()
    for one in (BOB, CID):
        around.heard(one, settle_stored_message([Opened(0, 2)]))
    around.carry()
    assert around.served == [(0, 2)]
    return around


def followed() -> tuple[Around, SettleRecord]:
    """Return a copy that has sealed epoch 2 of BOB, and reported; and the list of BOB."""
    around = Around()
    around.decide(copies(0, BOB, ME, CID))
    around.carry()
    assert around.said() == [(BOB.member, "report")]
    settle = SettleRecord(
        partition=0, epoch=2, start=1, transactions=(), closed=(), epochs=((2, 1),)
    )
    return around, settle


# ------------------------------------------------------------------ takeovers


def test_reports_count_for_their_epoch_and_the_list_is_made_of_all_of_them() -> None:
    around = begun()
    around.heard(BOB, report_message([report(BOB)]))
    around.heard(CID, report_message([report(CID, epoch=1)]))
    assert around.groups.blocked() == [[0, "reports", [CID.member.bytes]]]
    assert around.log.records == []
    around.heard(CID, report_message([report(CID)]))
    [([settle], _, _)] = around.log.records
    assert (settle.partition, settle.epoch) == (0, 2)
    around.groups.tick()
    assert len(around.log.records) == 1, "it is on its way already"


def test_what_did_not_get_into_the_log_is_given_to_it_again() -> None:
    around = begun()
    for one in (BOB, CID):
        around.heard(one, report_message([report(one)]))
    [(_, _, undo)] = around.log.records
    undo()
    assert around.phase() == "reports"
    around.groups.tick()
    [_, ([settle], then, _)] = around.log.records
    assert isinstance(settle, SettleRecord)
    then()
    around.log.records.clear()
    for one in (BOB, CID):
        around.heard(one, settle_stored_message([Opened(0, 2)]))
    [([record], _, undo)] = around.log.records
    assert record == OpenRecord(rows=(Opened(0, 2),))
    around.groups.tick()
    assert len(around.log.records) == 1, "it is on its way already"
    undo()
    assert around.phase() == "storing"
    around.groups.tick()
    [_, ([record], then, _)] = around.log.records
    then()
    assert around.served == [(0, 2)]


def test_an_epoch_is_open_once_all_others_have_its_list_and_that_is_told_until_it_is_known() -> (
    None
):
    around = listed()
    around.heard(BOB, settle_stored_message([Opened(0, 2)]))
    around.heard(CID, settle_stored_message([Opened(0, 1)]))
    assert around.phase() == "storing"
    around.heard(CID, settle_stored_message([Opened(0, 2)]))
    pumps = around.pumps
    around.carry()
    assert (around.served, around.phase()) == ([(0, 2)], None)
    assert around.pumps == pumps + 1, "its OPEN is the first item for the others"
    for after, times in ((0.0, 1), (ASK_AGAIN_S / 2, 1), (ASK_AGAIN_S, 2)):
        around.now = 100.0 + after
        around.groups.tick()
        assert around.suggested == [(EpochsOpened(opened=((0, 2),)), ())] * times
    around.decide(copies(0, ME, BOB, CID, opened=True))
    around.now += ASK_AGAIN_S
    around.groups.tick()
    assert len(around.suggested) == 2


def test_what_is_open_waits_for_somebody_who_leads_and_hears_it() -> None:
    around = listed()
    for copy in (BOB, CID):
        around.heard(copy, settle_stored_message([Opened(0, 2)]))
    around.carry()
    around.decisions.is_led = False
    around.groups.tick()
    assert around.suggested == []
    around.decisions.is_led = True
    around.groups.tick()
    assert len(around.suggested) == 1


def test_what_opens_is_told_at_once_though_something_else_was_told_lately() -> None:
    around = Around()
    around.decide(copies(0, ME, BOB), copies(1, ME, BOB))
    around.carry()
    for partition, epochs in ((0, ((0, 2),)), (1, ((0, 2), (1, 2)))):
        around.heard(BOB, report_message([report(BOB, partition=partition)]))
        around.carry()
        around.heard(BOB, settle_stored_message([Opened(partition, 2)]))
        around.carry()
        around.groups.tick()
        assert around.suggested[-1] == (EpochsOpened(opened=epochs), ())


def test_an_epoch_that_is_over_is_not_told_as_open() -> None:
    around = opened()
    around.decide(copies(0, BOB, ME, epoch=3))
    around.groups.tick()
    assert around.suggested == []


def test_an_epoch_without_other_copies_is_open_with_its_list_and_nobody_has_to_hear_of_it() -> None:
    around = Around()
    around.decide(copies(0, ME))
    around.carry()
    [(records, _, _)] = around.log.records
    assert [type(record) for record in records] == [SettleRecord, OpenRecord]
    around.carry()
    around.groups.tick()
    assert (around.served, around.suggested, around.said()) == ([(0, 2)], [], [])


def test_what_is_logged_of_an_epoch_that_is_over_goes_no_further() -> None:
    around = begun()
    for one in (BOB, CID):
        around.heard(one, report_message([report(one)]))
    around.decide(copies(0, ME, BOB, epoch=3))
    logged, around.log.records = around.log.records, []
    for _, then, _ in logged:
        then()
    assert (around.said(), around.phase()) == ([], "reports")
    around = listed()
    for one in (BOB, CID):
        around.heard(one, settle_stored_message([Opened(0, 2)]))
    around.decide(copies(0, ME, BOB, epoch=3))
    around.log.barriers.clear()
    around.carry()
    assert (around.served, around.phase()) == ([], "reports")


def test_a_copy_that_left_the_set_before_the_opening_gets_no_stream() -> None:
    around = listed()
    around.decide(copies(0, ME, BOB))
    for one in (BOB, CID):
        around.heard(one, settle_stored_message([Opened(0, 2)]))
    around.carry()
    [stream] = around.streams
    assert list(stream.followers) == [BOB]


def test_a_seal_that_is_followed_by_another_one_is_not_reported() -> None:
    around = Around()
    around.decide(copies(0, BOB, ME))
    around.decide(copies(0, CID, ME, epoch=3))
    around.carry()
    assert around.said() == [(CID.member, "report")]


def test_a_report_has_what_others_had_acknowledged() -> None:
    around = opened()
    around.streams.prepare(prepared(1), 10, None, 0.0)
    around.heard(BOB, stored_message([StoredUpto(0, 0, 2, 2)]))
    around.decide(copies(0, BOB, ME, CID, epoch=3))
    assert around.log.forsaken == [0]
    around.told.clear()
    around.carry()
    [(_, message)] = around.told
    [told] = reports_of(message, ME)
    assert told.acknowledged == (
        Acknowledged(BOB.member, 1, 1), Acknowledged(CID.member, 1, 0),
    )  # fmt: skip


# ------------------------------------------------------------------ who is late, or lacks something


def takeover_without(*left_out: Incarnation, epoch: int = 3) -> tuple[Takeover, Any]:
    kept = tuple(one for one in (ME, BOB, CID) if one not in left_out)
    change = Takeover(partition=0, epoch=epoch, author=ME, in_sync=kept)
    return change, ((0, epoch - 1, 1),)


def test_a_copy_that_does_not_do_its_part_is_left_out_again_and_again_until_it_is_decided() -> None:
    around = begun()
    around.heard(BOB, report_message([report(BOB)]))
    for after, times in (
        (REPLICA_TIMEOUT_S, 0), (REPLICA_TIMEOUT_S + 0.1, 1),
        (REPLICA_TIMEOUT_S + 0.2, 1), (2 * REPLICA_TIMEOUT_S + 0.2, 2),
    ):  # fmt: skip
        around.now = 100.0 + after
        around.groups.tick()
        assert around.suggested == [takeover_without(CID)] * times


def test_who_has_gone_is_not_asked_into_the_next_epoch_and_who_is_silent_itself_goes_on() -> None:
    around = Around()
    around.decide(copies(0, ME, BOB, CID), away=[BOB])
    around.heard(CID, report_message([report(CID)]))
    around.now += REPLICA_TIMEOUT_S + 1
    around.groups.tick()  # its own log has not let it report either
    assert around.suggested == [takeover_without(BOB)]


def test_who_has_reported_and_gone_is_not_asked_into_the_next_epoch() -> None:
    around = begun()
    around.heard(BOB, report_message([report(BOB)]))
    around.decide(copies(0, ME, BOB, CID), away=[BOB])
    around.now += REPLICA_TIMEOUT_S + 1
    around.groups.tick()
    assert around.suggested == [takeover_without(BOB, CID)]


def test_an_author_that_waits_for_nobody_else_asks_for_no_other_epoch() -> None:
    around = Around()
    around.decide(copies(0, ME))
    around.now += REPLICA_TIMEOUT_S + 1
    around.groups.tick()
    assert around.suggested == []


def test_an_author_stays_though_it_is_not_the_first_of_the_set() -> None:
    around = Around()
    around.decide(copies(0, BOB, ME, CID, author=ME))
    around.carry()
    around.heard(BOB, report_message([report(BOB)]))
    around.now += REPLICA_TIMEOUT_S + 1
    around.groups.tick()
    [(change, _)] = around.suggested
    assert (change.author, change.in_sync) == (ME, (BOB, ME))


def test_a_copy_that_lacks_something_is_left_out_and_stays_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    around = begun()
    lacking = SimpleNamespace(lacking={CID: "number 7"}, settle=None)
    monkeypatch.setattr(taking_over, "merged", lambda *_: lacking)
    for one in (BOB, CID):
        around.heard(one, report_message([report(one)]))
    assert around.suggested == [takeover_without(CID)]
    assert (around.phase(), around.log.records) == ("stuck", [])
    assert "lacks number 7" in caplog.text
    around.now += REPLICA_TIMEOUT_S + 1
    around.groups.tick()
    assert around.suggested == [takeover_without(CID)] * 2


def test_an_author_that_lacks_something_lets_a_copy_go_on_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    around = begun()
    lacking = SimpleNamespace(lacking={ME: "number 7", BOB: "number 7"}, settle=None)
    monkeypatch.setattr(taking_over, "merged", lambda *_: lacking)
    for one in (BOB, CID):
        around.heard(one, report_message([report(one)]))
    assert (around.released, around.targets) == ([[0]], [CID.member])
    assert around.suggested == []


def test_copies_of_which_none_has_what_the_others_have_keep_their_partition_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nobody_has_all(*_: object) -> None:
        raise MergeError("no copy has what the others have")

    around = begun()
    monkeypatch.setattr(taking_over, "merged", nobody_has_all)
    for one in (BOB, CID):
        around.heard(one, report_message([report(one)]))
    assert (around.phase(), around.log.records, around.suggested) == ("stuck", [], [])
    assert "no copy has what the others have" in caplog.text


def test_a_copy_that_left_an_open_set_is_sent_nothing_more() -> None:
    around = opened()
    around.decide(copies(0, ME, BOB))
    [stream] = around.streams
    assert list(stream.followers) == [BOB]


def late_follower(*, opened_by_log: bool = True) -> Around:
    """Return a primary whose second partition has a copy that stores nothing."""
    around = opened()
    around.decide(copies(0, ME, BOB, CID, opened=opened_by_log))
    around.heard(BOB, stored_message([StoredUpto(0, 0, 2, 1)]))
    around.now += REPLICA_TIMEOUT_S + 1
    return around


def test_a_copy_that_stores_nothing_is_complained_of_at_intervals() -> None:
    around = late_follower()
    for after, times in ((0.0, 1), (ASK_AGAIN_S / 2, 1), (ASK_AGAIN_S, 2)):
        around.now = 106.0 + after
        around.groups.tick()
        removed = CopiesRemoved(copy=CID, partitions=(0,))
        assert around.suggested == [(removed, ((0, 2, 1),))] * times


def test_no_copy_is_removed_in_place_before_the_log_knows_that_the_epoch_is_open() -> None:
    around = late_follower(opened_by_log=False)
    around.groups.tick()
    assert [type(change) for change, _ in around.suggested] == [EpochsOpened]


def test_who_reaches_less_than_its_copies_gives_up_what_it_complained_of_last() -> None:
    around = late_follower()
    for _ in range(3):
        around.groups.tick()
        around.now += ASK_AGAIN_S
    around.groups.refused(3, "it is stale")
    assert around.released == []
    around.groups.tick()
    around.groups.refused(1, GIVE_IT_UP)  # of that one nobody knows any more
    around.groups.refused(4, GIVE_IT_UP)
    assert around.released == [[], [0]]


# ------------------------------------------------------------------ a copy


def prepared(first: int) -> PrepareRecord:
    return PrepareRecord(
        tx_id=first.to_bytes(16, "big"), attempt=1, near=(BOB.member.bytes, 1), time=first, home=0,
        participants=(Participant(0, 2, 1),), run=Run(0, 2, first, 1), namespaces=16,
        keys=[b"k"], values=[b"v"],
    )  # fmt: skip


def items(*records: Streamed, first: int = 1) -> Message:
    return replicate_message(
        [Item(0, 0, 2, number, record) for number, record in enumerate(records, first)]
    )


OPEN = OpenRecord(rows=(Opened(0, 2),))
UPTO = CommitUptoRecord(rows=(Upto(0, 2, 1),))


def following() -> Around:
    around, settle = followed()
    around.heard(BOB, settle_message([settle]))
    around.carry()
    assert around.said() == [(BOB.member, "settle-stored")]
    return around


def test_a_list_is_stored_once_and_answered_each_time_if_it_is_of_the_epoch() -> None:
    around, settle = followed()
    around.heard(CID, settle_message([settle]))
    around.heard(BOB, settle_message([replace(settle, epoch=3)]))
    assert around.log.records == []
    around.heard(BOB, settle_message([settle]))
    assert around.said() == []
    around.carry()
    assert around.said() == [(BOB.member, "settle-stored")]
    around.heard(BOB, settle_message([settle]))
    assert (around.said(), around.log.records) == ([(BOB.member, "settle-stored")], [])


def test_a_list_whose_epoch_is_over_by_the_time_it_is_durable_is_not_answered() -> None:
    around, settle = followed()
    around.heard(BOB, settle_message([settle]))
    around.decide(copies(0, BOB, ME, epoch=3))
    around.log.barriers.clear()
    around.carry()
    assert around.said() == []
    around.heard(BOB, items(OPEN))
    assert around.log.commits == []


def answers(around: Around) -> list[tuple[UUID, list[StoredUpto]]]:
    told, around.told = around.told, []
    return [(member, stored_of(message)) for member, message in told]


@pytest.mark.parametrize("room_after", [0.5, 60.0])
def test_who_has_too_much_in_memory_answers_once_there_is_room_or_a_second_has_passed(
    room_after: float,
) -> None:
    around = following()
    around.log.is_full, began = True, around.now

    def stored(number: int) -> None:
        around.heard(BOB, items(OPEN, prepared(1)) if number == 1 else items(prepared(2), first=3))
        commit, _ = around.log.commits[-1]
        assert commit.record is not None
        assert commit.then is not None
        assert commit.record(0)
        commit.then()

    stored(1)
    around.now = began + 0.4
    stored(2)
    assert around.applied == 2, "reads do not wait for that"
    said = []
    for after in (0.45, 0.55, 0.99, 1.01, 1.5):
        around.now = began + after
        around.log.is_full = after < room_after
        around.groups.tick()
        said += [(after, *row) for row in answers(around)]
    row = StoredUpto(0, 0, 2, 3)
    assert said == [(0.55 if room_after < 1 else 1.01, BOB.member, [row])], "once, with the newest"
    around.log.is_full = False
    around.heard(BOB, items(OPEN))
    assert answers(around) == [(BOB.member, [row])]


def test_every_author_is_told_late_of_every_partition() -> None:
    around = following()
    around.log.is_full = True
    stored = {}
    for partition, author in ((3, BOB), (4, CID), (5, BOB)):
        place = Following(partition, 2, author)
        place.durable = partition
        stored[partition] = StoredUpto(partition, 0, 2, partition)
        around.groups._stored_items(author, around.groups._now(), [place])
    around.log.is_full = False
    around.groups.tick()
    assert answers(around) == [(BOB.member, [stored[3], stored[5]]), (CID.member, [stored[4]])]


def test_each_author_is_told_late_of_all_that_is_its_own() -> None:
    log: Any = SimpleNamespace(is_full=True)
    now, told = 5.0, LateWords[tuple[str, list[int]]](log)
    words = [("bob", [0]), ("cid", [1]), ("bob", [2])]
    assert [told.put_off(word, now, now) for word in words] == [True] * 3
    assert told.due(now + 0.9) == []
    assert told.due(now + LATE_S_MAX) == words
    assert told.due(now + 9) == []
    assert told.put_off(words[0], now + 20, now + 20.4)
    assert told.due(now + 20.5) == []
    assert told.put_off(words[1], now + 20.5, now + 20.6)
    assert not told.put_off(words[2], now + 19.6, now + 20.6), "its disk took all of the second"
    assert told.due(now + 21) == words[:2], "a second counts from what came first on"
    assert told.put_off(words[0], now + 30, now + 30)
    log.is_full = False
    assert not told.put_off(words[1], now + 30, now + 30.6)
    assert told.due(now + 30.6) == words[:1]


def test_items_are_answered_when_they_are_durable_and_again_when_they_come_again() -> None:
    around = following()
    around.heard(BOB, items(OPEN, prepared(1)))
    around.heard(BOB, items(OPEN))
    assert answers(around) == [], "nothing is durable yet"
    [(commit, _)] = around.log.commits
    assert commit.record is not None
    assert commit.then is not None
    assert commit.record(0)
    assert around.log.noted == [prepared(1).tx_id]
    commit.then()
    row = StoredUpto(0, 0, 2, 2)
    assert answers(around) == [(BOB.member, [row])]
    assert around.applied == 1, "reads may have waited for it"
    around.heard(BOB, items(OPEN))
    assert answers(around) == [(BOB.member, [row])]
    assert len(around.log.commits) == 1
    around.groups.connected(BOB.member)
    assert [kind for _, kind in around.said()] == ["report", "settle-stored", "stored"]
    around.groups.connected(CID.member)
    assert around.said() == []


def test_only_what_somebody_waits_for_is_in_haste() -> None:
    around = following()
    around.heard(BOB, items(OPEN, prepared(1)))
    around.heard(BOB, items(UPTO, first=3))
    around.waits = True
    around.heard(BOB, items(UPTO, first=4))
    hastes = [haste for _, haste in around.log.commits]
    assert hastes == [Haste.AT_ONCE, Haste.COURTESY, Haste.AT_ONCE]


def test_what_is_queued_of_an_epoch_that_is_over_does_not_get_into_the_log() -> None:
    around = following()
    around.heard(BOB, items(OPEN, prepared(1)))
    around.decide(copies(0, BOB, ME, epoch=3))
    around.told.clear()
    [(commit, _)] = around.log.commits
    assert commit.record is not None
    assert commit.then is not None
    assert commit.record(0) == b""
    commit.then()
    assert answers(around) == []


def test_items_that_did_not_get_into_the_log_end_the_connection_and_are_taken_again() -> None:
    around = following()
    line = around.heard(BOB, items(OPEN))
    around.heard(BOB, items(prepared(1), first=2))
    [(commit, _), (behind, _)] = around.log.commits
    assert commit.undo is not None
    commit.undo()
    assert line.ended == 1
    assert behind.record is not None
    assert behind.record(0) == b"", "what lies before it is missing"
    around.heard(BOB, items(OPEN, prepared(1)))
    assert len(around.log.commits) == 3
    again = around.log.commits[-1][0].record
    assert again is not None
    assert again(0)


def test_a_stored_item_may_let_something_commit() -> None:
    around = opened()
    decides = around.log.decides
    around.heard(BOB, stored_message([StoredUpto(0, 0, 2, 1)]))
    assert around.log.decides == decides + 1


def test_a_copy_is_asked_for_reads_in_an_epoch_that_is_open_here_if_it_is_listed_and_whole() -> (
    None
):
    around = following()
    state = around.log.state
    assert around.groups.followed(0) is None
    state.epochs[0] = 2
    assert around.groups.followed(0) is None, "it lacks something"
    state.copies.open(0, 2)
    found = around.groups.followed(0)
    assert found is not None
    assert (found.epoch, found.author) == (2, BOB)
    state.epochs[0] = 1
    assert around.groups.followed(0) is None
    state.epochs[0] = 2
    around.decide(copies(0, BOB, CID))  # it was taken out of the set
    assert around.groups.followed(0) is None


# ------------------------------------------------------------------ copies that come back

PLACE = ReturnPlace(0, 2, 7)


def moving(admission: int = 7) -> PartitionCopies:
    """Return what is decided while CID is catching up."""
    catching_up = (MovingCopy(CID, admission),)
    return copies(0, ME, BOB, opened=True, changed=admission, moving=catching_up)


def admitted() -> Around:
    """Return a primary whose stream CID follows, by an admission that is decided."""
    around = opened()
    around.decide(copies(0, ME, BOB, opened=True))
    around.decide(moving())
    around.streams.admit(0, CID, 7, around.now)
    return around


def followers(around: Around) -> list[Incarnation]:
    [stream] = around.streams
    return list(stream.followers)


PAIRS = PackedPairs(b"lengths", b"pairs")


def test_words_about_copies_that_come_back_go_to_who_brings_them_back() -> None:
    around = following()
    supplied = SuppliedRecord(
        partition=0, admission=7, source=BOB.member.bytes, transactions=(), closed=()
    )
    row = Admitted(place=PLACE, kind=SupplyKind.FULL)
    piece, filled = SupplyPiece(PLACE, 1, False, supplied), FillPiece(PLACE, 1, PAIRS)
    around.heard(BOB, admit_message([row]), supply_message([piece]), fill_message(filled))
    assert around.catching_up.heard == [
        ("admitted", BOB, [row]), ("supplied", BOB, [piece]), ("filled", BOB, filled),
    ]  # fmt: skip
    around.heard(CID, demand_message([Demanded(PLACE, 3)]))
    assert around.supplies.heard == [(CID, [Demanded(PLACE, 3)])]


def test_a_report_outside_of_a_takeover_is_of_a_copy_that_comes_back() -> None:
    around = begun()
    around.heard(CID, report_message([report(CID), report(CID, partition=1)]))
    assert around.supplies.heard == [(report(CID, partition=1),)]
    around = opened()
    around.heard(CID, report_message([report(CID)]))
    assert around.supplies.heard == [(report(CID),)]


def test_who_brings_copies_back_hears_of_each_decision_tick_and_refusal() -> None:
    around = begun()
    around.decide(copies(0, ME, BOB))
    [(nothing, first), (before, second)] = around.catching_up.topologies
    assert (nothing.index, first.index, second.index) == (0, 1, 2)
    assert before is first
    assert around.supplies.topology is second
    around.groups.tick()
    assert (around.supplies.ticks, around.catching_up.ticks) == (1, 1)
    assert (around.leftovers.topologies, around.leftovers.ticks) == (
        around.catching_up.topologies,
        1,
    )
    around.groups.refused(5, "it is stale")
    assert around.supplies.heard == [(5,)]
    around.log.failure = TidelogError("the disk is broken")
    around.groups.tick()
    around.heard(CID, demand_message([Demanded(PLACE, 3)]))
    assert (around.supplies.ticks, around.catching_up.ticks) == (1, 1)
    assert around.supplies.heard == [(5,)]


def test_over_a_new_connection_goes_first_what_a_copy_has_not_answered() -> None:
    around = begun()
    around.supplies.sent[CID.member] = [demand_message([])]
    around.catching_up.demands[BOB.member] = [Demanded(PLACE, 3)]
    for one in (BOB, CID):
        around.groups.connected(one.member)
    assert around.connections == [(BOB.member, []), (CID.member, [demand_message([])])]
    [(member, message)] = around.told
    assert (member, demanded_of(message)) == (BOB.member, [Demanded(PLACE, 3)])


def test_a_copy_that_is_catching_up_follows_as_long_as_its_admission_is_decided() -> None:
    around = admitted()
    around.decide(replace(moving(), changed=8, in_sync=(ME,)))
    assert followers(around) == [CID], "others may go"
    around.decide(moving(admission=9))
    assert followers(around) == [], "it begins anew"
    around.streams.admit(0, CID, 9, around.now)
    around.decide(copies(0, ME, BOB, opened=True, changed=10))
    assert followers(around) == []


def test_a_copy_that_has_caught_up_goes_on_where_it_was() -> None:
    around = admitted()
    around.streams.join(0, CID)
    around.decide(copies(0, ME, BOB, CID, opened=True, changed=8))
    [stream] = around.streams
    assert {copy: one.admission for copy, one in stream.followers.items()} == {BOB: 0, CID: 7}


def test_nobody_is_kept_whose_admission_this_member_has_not_carried_out() -> None:
    around = opened()
    around.decide(moving())
    assert followers(around) == [BOB]


def test_a_copy_that_is_catching_up_is_not_asked_for_reads() -> None:
    around = Around()
    around.log.state.copies.open(0, 2)
    around.log.state.epochs[0] = 2
    around.decide(copies(0, BOB, CID, opened=True, moving=(MovingCopy(ME, 7),)))
    place = around.followed[0] = Following(0, 2, BOB)
    place.admit(7, 4)
    assert around.groups.followed(0) is None
    around.decide(copies(0, BOB, CID, ME, opened=True))
    assert around.groups.followed(0) is place


def test_a_copy_that_is_catching_up_stores_items_behind_its_admission() -> None:
    around = Around()
    around.decide(copies(0, BOB, CID, opened=True, moving=(MovingCopy(ME, 7),)))
    place = around.followed[0] = Following(0, 2, BOB)
    place.admit(7, 4)
    for number in (4, 6, 5):
        around.heard(BOB, replicate_message([Item(0, 7, 2, number, prepared(number))]))
    [(commit, _)] = around.log.commits
    assert commit.then is not None
    assert commit.record is not None
    assert commit.record(0)
    assert answers(around) == [(BOB.member, [StoredUpto(0, 7, 2, 4)])], "it has 4 already"
    commit.then()
    assert answers(around) == [(BOB.member, [StoredUpto(0, 7, 2, 5)])]


def test_what_is_open_is_told_the_log_when_somebody_wants_to_come_back() -> None:
    around = Around()
    around.decide(copies(0, ME), copies(1, ME))
    for partition in (0, 1):
        around.groups.announce(partition)  # the stand-in serves partition 1 alone
    around.groups.tick()
    assert around.suggested == [(EpochsOpened(opened=((1, 2),)), ())]


# ------------------------------------------------------------------ early words, and a broken log


def test_what_speaks_of_decisions_to_come_waits_and_what_is_behind_it_does_too() -> None:
    around = Around()
    around.decide(copies(0, BOB, ME))
    around.carry()
    around.told.clear()
    line = connection(CID, decided=3)
    around.groups.arrived(line, [report_message([report(CID, epoch=3)])])
    line.decided = 1  # as if it was of a message behind it
    around.groups.arrived(line, [report_message([report(CID, epoch=3)])])
    gone = around.heard(CID, report_message([report(CID, epoch=3)]), decided=3)
    gone.up = False
    heard: list[Message] = []

    def take_reports(_sender: Incarnation, message: Message) -> list[Report]:
        heard.append(message)
        return []

    groups: Any = around.groups
    groups._taking_over.take_reports = take_reports
    around.decide(copies(0, ME, CID, epoch=3))
    assert len(heard) == 1, "the first one still waits"
    around.decide(copies(0, ME, CID, epoch=3))
    assert len(heard) == 2


def test_too_much_that_comes_early_ends_its_connection() -> None:
    around = begun()
    message = report_message([report(BOB)])
    assert around.heard(BOB, *[message] * EARLY_MAX, decided=9).ended == 0
    assert around.heard(BOB, message, decided=9).ended == 1
    assert around.heard(CID, message).ended == 0


def test_a_new_connection_is_told_again_what_may_have_been_lost() -> None:
    around = listed()
    around.heard(BOB, settle_stored_message([Opened(0, 2)]))
    around.groups.connected(BOB.member)
    assert around.said() == []
    around.groups.connected(CID.member)
    assert around.said() == [(CID.member, "settle")]
    around, _ = followed()
    around.groups.connected(CID.member)
    assert around.said() == []
    around.groups.connected(BOB.member)
    assert around.said() == [(BOB.member, "report")]
    around.decide(copies(0, CID, BOB, epoch=3))
    around.groups.connected(BOB.member)
    assert around.said() == []


def test_each_tick_tells_what_has_committed() -> None:
    around = begun()
    around.groups.tick()
    assert around.log.tells == 1


def test_what_is_decided_may_let_something_commit() -> None:
    around = begun()
    decides = around.log.decides
    around.decide(copies(0, ME, BOB))
    assert around.log.decides == decides + 1


def test_transactions_of_several_groups_hear_of_epochs_decisions_and_ticks() -> None:
    around = listed()
    heard = around.transactions
    assert heard.of_epochs == [("sealed", 0)]
    for one in (BOB, CID):
        around.heard(one, settle_stored_message([Opened(0, 2)]))
    assert heard.of_epochs == [("sealed", 0)], "not before the opening is in the log"
    around.carry()
    assert heard.of_epochs == [("sealed", 0), ("opened", 0)]
    around.decide(copies(0, BOB, ME, epoch=3))
    assert heard.of_epochs[2:] == [("sealed", 0)], "what is pending goes with the epoch"
    assert [one.index for one in heard.topologies] == [1, 2]
    ticks = heard.ticks
    around.groups.tick()
    assert heard.ticks == ticks + 1


def test_messages_about_transactions_of_several_groups_go_to_these() -> None:
    around = begun()
    wanted = [
        "lock", "locked", "unlock", "confirm", "confirmed", "prepare", "prepared", "refused",
        "decision", "question", "settled", "ask-settled", "forget", "ask-over", "over",
        "pin", "pinned", "resume", "held", "acquire", "acquired", "give-back", "probe", "too-old",
    ]  # fmt: skip
    assert {kind.name for kind in KINDS if Transactions.takes(kind.name)} == set(wanted)
    messages = [example_of(BY_NAME[name]) for name in wanted]
    around.heard(CID, *messages)
    assert around.transactions.messages == [(CID, message) for message in messages]


def broken(*partitions: PartitionCopies) -> Around:
    around = Around()
    around.decide(*partitions)
    around.log.failure = TidelogError("the disk is broken")
    return around


def test_who_complains_of_copies_still_gives_up_what_it_asked_another_epoch_for() -> None:
    around = late_follower()
    around.decide(copies(0, ME, BOB, CID, opened=True), copies(1, ME, BOB), copies(2, ME, BOB))
    around.groups.tick()
    around.now += REPLICA_TIMEOUT_S + 0.1
    around.groups.tick()
    around.now += ASK_AGAIN_S
    around.groups.tick()
    asked = [
        number for number, (one, _) in enumerate(around.suggested, 1) if isinstance(one, Takeover)
    ]
    assert [around.suggested[number - 1][0].partition for number in asked] == [1, 2]
    assert isinstance(around.suggested[-1][0], CopiesRemoved)
    around.groups.refused(asked[0], "it is stale")
    around.groups.refused(asked[1], GIVE_IT_UP)
    assert around.released == [[2]]


def test_a_member_whose_log_is_broken_leaves_sets_that_others_are_in() -> None:
    around = broken(copies(0, ME, BOB), copies(1, BOB, ME))
    around.streams.open(0, 2, [BOB], 0.0)
    for after, times in ((0.0, 1), (ASK_AGAIN_S / 2, 1), (ASK_AGAIN_S, 2)):
        around.now = 100.0 + after
        around.groups.tick()
        assert around.suggested == [(MemberGone(incarnation=ME), ())] * times
        assert around.released == [[0]] * times, "who serves something may not leave"
    assert around.log.forsaken == [0] * 3
    around.heard(BOB, report_message([report(BOB)]))
    assert (around.log.records, around.log.tells) == ([], 0), "nothing rests on this log"


def test_a_member_whose_log_is_broken_keeps_what_only_it_has() -> None:
    around = broken(copies(0, ME, BOB), copies(1, ME), copies(2, BOB, ME), copies(3, BOB, CID))
    around.groups.tick()
    assert (around.suggested, around.released) == ([], [[0]])
    around = broken(copies(0, ME))
    around.groups.tick()
    assert (around.suggested, around.released) == ([], [[]])


def test_nothing_is_taken_that_comes_behind_a_failure_of_the_log() -> None:
    around = following()
    around.log.failure = TidelogError("the disk is broken")
    around.heard(BOB, items(OPEN))
    assert around.log.commits == []


def deposed() -> Around:
    """Return a primary that has lost its partition, and has not told yet what committed there."""
    around = opened()
    stream = around.streams.get(0)
    assert stream is not None
    stream.committed = 1
    around.streams._untold[0] = None
    around.decide(copies(0, BOB, ME, epoch=3))
    return around


def test_reports_that_wait_for_the_disk_are_made_though_another_seal_comes_before() -> None:
    around = deposed()
    [(records, _, undo)] = around.log.records
    assert [one.rows for one in records] == [(Upto(0, 2, 1),)]
    assert around.log.unsaid == {0}
    around.log.records = []
    undo()  # no space on the disk
    around.decide(copies(0, BOB, ME, epoch=3), copies(1, BOB, ME, epoch=3))
    for _ in range(3):
        around.groups.tick()
        around.carry()
    assert not around.log.unsaid
    told = [message for _, message in around.told if BY_NUMBER[message[0]].name == "report"]
    assert {partition for message in told for partition in message[1]} == {0, 1}


def test_what_others_have_too_is_released_while_the_disk_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    around, tick = Around(), ASK_AGAIN_S / 4
    around.decide(
        copies(0, ME, BOB), copies(1, ME), copies(2, BOB, ME), copies(3, ME, BOB, CID),
        copies(4, ME, CID), away=[CID],
    )  # fmt: skip
    around.log.asked_disk_at = around.now
    for _ in range(int(DISK_TIMEOUT_S / tick)):
        around.groups.tick()
        around.now += tick
    assert around.released == []
    for _ in range(1 + int(2 * ASK_AGAIN_S / tick)):
        around.groups.tick()
        around.now += tick
    assert around.released == [[0, 3]] * 3, "as often as nobody may have heard it"
    assert caplog.text.count("node.disk_hangs") == 1
    assert "2 partitions" in caplog.text
    around.log.asked_disk_at = float("inf")
    around.now += ASK_AGAIN_S
    around.groups.tick()
    assert around.released == [[0, 3]] * 3


def test_what_comes_back_while_the_disk_hangs_is_released_more_and_more_seldom() -> None:
    around, tick = Around(), ASK_AGAIN_S / 8
    around.decide(copies(0, ME, BOB), copies(1, BOB, ME))
    around.log.asked_disk_at = around.now
    since, pauses = around.now + DISK_TIMEOUT_S, list[float]()

    def go_on(epoch: int) -> None:
        """Release what came back, and hear later that another one took it over and gave it up."""
        nonlocal since
        heard = len(around.released)
        while len(around.released) == heard:
            around.now += tick
            around.groups.tick()
        pauses.append(around.now - since)
        since = around.now
        around.decide(copies(0, BOB, ME, epoch=epoch + 1), copies(1, BOB, ME))
        around.decide(copies(0, ME, BOB, epoch=epoch + 2), copies(1, BOB, ME))

    for epoch in range(2, 16, 2):
        go_on(epoch)
    expected = [0.0, *(min(ASK_AGAIN_S * 2**n, REPLICA_TIMEOUT_S) for n in range(6))]
    assert pauses == pytest.approx(expected, abs=2 * tick)
    around.decide(copies(0, BOB, ME, epoch=20), copies(1, ME, BOB, epoch=20))
    go_on(20)
    assert around.released[-1] == [1]
    assert pauses[-1] == pytest.approx(0.0, abs=2 * tick), "the pause of one is not that of another"
    around.log.asked_disk_at = float("inf")
    around.groups.tick()
    around.log.asked_disk_at, since = around.now, around.now + DISK_TIMEOUT_S
    for epoch in (22, 24):
        go_on(epoch)
    assert pauses[-2:] == pytest.approx([0.0, ASK_AGAIN_S], abs=2 * tick), "another hang"


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("at_first", [begun, late_follower])
def test_nobody_is_held_to_time_in_which_the_own_disk_does_not_answer(
    hangs: bool, at_first: Callable[[], Around]
) -> None:
    """Neither for a report nor for what was sent, from a second on: so long a disk may take."""
    around = at_first()
    around.now = 100.0
    around.log.asked_disk_at = 99.0 if hangs else float("inf")
    while around.now < 100.0 + SLOW_S + 1.5 * REPLICA_TIMEOUT_S:
        around.groups.tick()
        around.now += ASK_AGAIN_S / 8
    left_out = [one for one, _ in around.suggested if isinstance(one, Takeover | CopiesRemoved)]
    assert (not left_out) == hangs


def test_what_belongs_to_an_older_epoch_is_said_no_more_and_waited_for_no_more() -> None:
    around = begun()
    around.decide(copies(0, BOB, ME, epoch=3))
    assert around.groups.blocked() == [], "another one opens it"
    around, _ = followed()
    around.groups.connected(BOB.member)
    assert around.said() == [(BOB.member, "report")]
    around.decide(copies(0, BOB, ME, epoch=3))
    around.groups.connected(BOB.member)
    assert around.said() == [], "the report of the new epoch is on its way"


def test_each_word_about_a_list_names_its_partition_and_its_epoch() -> None:
    around, settle = followed()
    stored = (BOB.member, settle_stored_message([Opened(0, 2)]))
    around.heard(BOB, settle_message([settle]))
    around.carry()
    around.heard(BOB, settle_message([settle]))
    around.groups.connected(BOB.member)
    assert [one for one in around.told if BY_NUMBER[one[1][0]].name == "settle-stored"] == [
        stored
    ] * 3
    alone = Around()
    alone.decide(copies(0, BOB, CID), copies(1, ME))
    alone.carry()
    [([settle, record], _, _)] = alone.log.records
    assert (settle.partition, settle.epoch) == (1, 2)
    assert record == OpenRecord(rows=(Opened(1, 2),))


def test_an_author_that_still_empties_a_partition_reports_behind_that() -> None:
    around, empties = Around(), {0, 1}
    around.groups.emptying.empties = lambda partition: partition in empties  # type: ignore[method-assign]
    around.decide(copies(0, ME), copies(1, BOB, ME))
    around.carry()
    assert around.said() == [(BOB.member, "report")], "a copy waits for nothing"
    for _ in range(2):
        around.groups.tick()
        around.carry()
    assert (around.phase(0), around.log.records) == ("reports", [])
    empties.clear()
    around.groups.tick()
    around.carry()
    assert around.phase(0) == "logging"


def test_a_disk_without_space_for_what_has_committed_is_tried_again() -> None:
    around = deposed()
    [(records, _, undo)] = around.log.records
    around.log.records = []
    undo()
    around.groups.tick()
    assert [again for again, _, _ in around.log.records] == [records]
    around.groups.tick()
    assert len(around.log.records) == 1, "it is on its way already"
