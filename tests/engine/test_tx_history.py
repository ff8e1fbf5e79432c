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
from tidelog.engine.commit.outcomes import dated_id
from tidelog.engine.files.recorded import CLOCKS_APART
from tidelog.engine.node.tasks import Tasks
from tidelog.engine.node.tx_history import LOOK_AGAIN_S, TxHistory
from tidelog.errors import CorruptLogError
from tidelog.wal.records import (
    CommitRecord,
    Committed,
    OutcomesRecord,
    Participant,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    TxRecord,
)

STORE = b"s" * 16
NEAR = b"m" * 16, 1
SECOND = 1_000_000
TX = dated_id(10 * SECOND, b"%016d" % 1, STORE)
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


class At:
    """A member whose log has some records about the transaction, and nothing else."""

    def __init__(
        self, *records: Record, first: int = 0, since: int = 0, filled: int | None = 0
    ) -> None:
        self.state = State(STORE, one_space(2))
        self.fails: Exception | None = None
        self.mends = 99
        """After so many looks that fail the log can be read."""
        self.looks = 0
        keeper = SimpleNamespace(
            records_about=self._records, first_position=first, known_since=lambda: since,
            filled_until=lambda partition: 0 if partition else filled,
        )  # fmt: skip
        files: Any = SimpleNamespace(
            state=self.state, keeper=keeper, path="store",
            manifest=SimpleNamespace(log_ids=[]), environment=SimpleNamespace(run=self._run),
        )  # fmt: skip
        self.records = list(records)
        self.tasks = Tasks()
        self.history = TxHistory(files, self.tasks)

    def _records(self, _tx_id: bytes, _log_ids: object) -> list[Record]:
        self.looks += 1
        if self.fails is not None and self.looks <= self.mends:
            raise self.fails
        return self.records

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
    assert At(*records, first=9, since=10 * SECOND).outcome() == "too_old"
    assert At(*records, first=9, since=9 * SECOND).outcome() == "rolled_back"


def test_what_is_younger_than_a_full_copy_would_be_in_the_log() -> None:
    # It was "too old to tell" for as long as the log had the copy in it: each kill of a member that
    # had once been copied in full left commits under way unknown.
    born = CLOCKS_APART + 10 * SECOND
    young = dated_id(born, b"%016d" % 2, STORE)
    assert At(filled=10 * SECOND).outcome(young) == "too_old"
    assert At(filled=10 * SECOND - 1).outcome(young) == "rolled_back"
    assert At(filled=born + CLOCKS_APART).outcome(young) == "too_old"
    assert At(filled=born).outcome(young, home=1) == "rolled_back", "it was another partition"
    assert At(filled=1).outcome(b"no age in this id") == "too_old"
    lost = At(filled=1, first=9, since=born)
    assert lost.outcome(young) == "too_old", "the log does not go back so far"


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
    genuine = at._records

    def records(tx_id: bytes, log_ids: object) -> list[Record]:
        if at.looks == 2:
            at.state.copies.prepared(0).take(TX, HERE)
            at.records.append(COMMITTED)
        return genuine(tx_id, log_ids)

    at.history._files.keeper.records_about = records  # type: ignore[method-assign]
    assert at.outcome() == "committed"
    assert at.looks == 4, "it is looked at once more behind its end"


def loss(time: int, partition: int = 0) -> Loss:
    author = Incarnation(UUID(int=1), 1)
    return Loss(
        index=3, partition=partition, before=1, epoch=2, author=author, opened=1, upto=3, time=time
    )


@pytest.mark.parametrize(
    ("losses", "outcome"),
    [
        ((loss(11 * SECOND),), "too_old"),
        ((loss(10 * SECOND),), "too_old"),
        ((loss(9 * SECOND),), "rolled_back"),
        ((loss(11 * SECOND), loss(9 * SECOND)), "too_old"),
        ((loss(11 * SECOND, 1),), "rolled_back"),
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


@pytest.mark.parametrize("commits", [True, False])
def test_what_was_resolved_is_told_where_nothing_else_is_known(commits: bool) -> None:
    resolution = Resolution(
        index=4, tx_id=TX, attempt=1, commits=commits, by_hand=True, time=11, partitions=(0, 1),
        missing=(0,),
    )  # fmt: skip
    at = At(filled=None)
    at.history.decided(Topology(losses=(loss(11 * SECOND),), resolutions=(resolution,)))
    assert at.outcome() == ("committed" if commits else "rolled_back")
    at.records = [prepared(HERE), ROLLED_BACK if commits else COMMITTED]
    assert at.outcome() == ("rolled_back" if commits else "committed"), "that is what is so here"


def test_a_log_that_cannot_be_read_is_told() -> None:
    at = At()
    at.fails = CorruptLogError("damaged", kind="crc", segment=0, offset=0)
    assert isinstance(at.outcome(), CorruptLogError)
    assert isinstance(at.story(), CorruptLogError)


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
