"""Commits of clients at a member, and what became of them, request by request: no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from support.group_transactions import FRESH, MAP, OTHER, PARTITIONS, TX
from support.primaries import BOB, CID, ME, Primary, key_in, lock, name_in
from tidelog.engine.commit import outcomes
from tidelog.engine.commit.outcomes import Outcome, home_of
from tidelog.engine.data.digests import RANGE_KEYS_MAX
from tidelog.engine.data.namespaces import OUTCOMES
from tidelog.engine.net.kinds import BY_NUMBER
from tidelog.engine.node import reads
from tidelog.engine.node.client_request import ClientRequest
from tidelog.engine.node.committing import (
    READ_KEYS_MAX,
    RECENT_MAX,
    SHARE_BYTES_MAX,
    SILENT_S,
    Committing,
)
from tidelog.engine.node.group_locks import HELD_S_MAX
from tidelog.engine.node.tx_messages import AcquireWanted
from tidelog.engine.replication.stream import StoredUpto
from tidelog.errors import (
    CommitUnknownError,
    ConflictError,
    DeadlineError,
    DiskError,
    DiskFullError,
    TooFewCopiesError,
    TransactionTooLargeError,
)
from tidelog.wal.records import Run

SHARED, ALONE, ALSO, THERE = 0, 1, 4, 3
"""Partitions: with a copy at Bob, here alone, another such one, and Cid's."""
NAMED, NAMED_SHARED = (
    next(one for one in (b"%016d" % n for n in range(99)) if home_of(one, PARTITIONS) == home)
    for home in (ALONE, SHARED)
)
"""Ids that are given: the outcome of one lies here alone, Bob has that of the other one, too."""

ASKED_UNTIL = 1e9
"""The deadline of questions for an outcome."""


class Clients(Primary):
    """A primary with clients; what each was answered is in ``answers``, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[int, list[Any]] = {}
        self.led: dict[bytes, Callable[..., None]] = {}
        self.homes: list[int] = []
        self.looked_up: list[Callable[[Outcome | Exception], None]] = []
        self.may_be_lost = False
        leading = SimpleNamespace(leads=self.led.__contains__, begin=self._lead, over=None)
        history = SimpleNamespace(may_be_lost=lambda _tx_id, _home: self.may_be_lost)
        transactions: Any = SimpleNamespace(
            locks=self.locks, near=leading, history=history, plain=self.plain
        )
        self.committing = Committing(
            self.log, self.partitions, self.streams, self, (ME.member.bytes, ME.boot), transactions
        )
        self.acknowledged: list[tuple[bytes, list[int]]] = []
        self.committing.acknowledged = lambda tx_id, runs: self.acknowledged.append(
            (tx_id, list(runs))
        )

    def _lead(self, wanted: Any, home: int, _deadline: float, done: Callable[..., None]) -> None:
        self.led[wanted.tx_id] = done
        self.homes.append(home)

    def find_outcome(
        self,
        _tx_id: bytes,
        _home: int,
        done: Callable[[Outcome | Exception], None],
        until: float,
    ) -> None:
        assert until == ASKED_UNTIL, "who has gone waits for nothing"
        self.looked_up.append(done)

    def _ask(
        self, handler: Callable[[ClientRequest], None], arguments: list[Any], deadline: float
    ) -> list[Any]:
        """Let a client ask; return the list that will have what it is answered."""
        number, told = len(self.answers), list[Any]()
        self.answers[number] = told

        def send(message: Any) -> None:
            kind = BY_NUMBER[message[0]].name
            told.append(message[2] if kind == "response" else tuple(message[2:5:2]))

        connection: Any = SimpleNamespace(send=send)
        ClientRequest(connection, number, deadline, "", arguments).carry_out(handler)
        return told

    def commit(
        self, tx_id: bytes, *partitions: int, given: bool = False, number: int = 0,
        read: Sequence[int] = (), epochs: Iterable[int] = (), deadline: float = float("inf"),
        value: bytes = b"v",
    ) -> list[Any]:  # fmt: skip
        """Write the n-th key of some partitions, and confirm that those of others are not there."""
        home = [home_of(tx_id, PARTITIONS)] if given else []
        touched = sorted({*partitions, *read, *home})
        seen = [[MAP, [name_in(one)], [0], [0]] for one in read]
        writes = [[MAP, [name_in(one, number)], [value]] for one in partitions]
        named = touched, list(epochs) or [1] * len(touched)
        arguments = [tx_id, 1, given, None, seen, [], writes, *named]
        return self._ask(self.committing.commit, arguments, deadline)

    def outcome(self, tx_id: bytes, *, given: bool = False, home: int = ALONE) -> list[Any]:
        return self._ask(self.committing.outcome, [tx_id, given, home], ASKED_UNTIL)

    def entry(self, tx_id: bytes) -> outcomes.OutcomeEntry | None:
        """What is kept of a given id."""
        [stored], _, _ = reads.get(self.log.overlay.view, OUTCOMES, [tx_id], [ALONE])
        return None if stored is None else outcomes.decode_outcome(stored)


def code(told: list[Any]) -> str:
    [failure] = told
    assert isinstance(failure, tuple)
    return str(failure[0])


def lease_ends_in_sync(at: Clients) -> None:
    def end() -> None:
        at.leases.held = False

    at.sync_runs = end


# ------------------------------------------------------------------ confirmed


def test_a_commit_is_answered_with_its_time_and_its_numbers() -> None:
    at = Clients()
    told = at.commit(TX, ALONE, ALSO)
    assert told == []
    at.carry()
    assert told == [(1000, [ALONE, ALSO], [1, 1], [1, 1], [1, 1])]
    again = at.commit(OTHER, ALONE, number=1)
    at.carry()
    assert again == [(1000, [ALONE], [1], [2], [1])]
    assert at.acknowledged == [(TX, [ALONE, 1, 1, 1, ALSO, 1, 1, 1]), (OTHER, [ALONE, 1, 2, 1])]


def test_all_that_wait_for_a_lease_are_answered_under_the_next_one_and_once() -> None:
    at = Clients()
    told = [at.commit(TX, ALONE), at.commit(OTHER, ALONE, number=1)]
    lease_ends_in_sync(at)
    at.carry()
    at.committing.tick()
    assert told == [[], []]
    at.leases.held = True
    at.committing.tick()
    at.committing.tick()
    assert [len(answers) for answers in told] == [1, 1]


def test_a_commit_that_no_lease_confirms_in_time_is_unknown_and_can_be_asked_for() -> None:
    at = Clients()
    told = at.commit(TX, ALONE, ALSO, deadline=at.now + 1)
    lease_ends_in_sync(at)
    at.carry()
    at.now += 1
    at.committing.tick()
    [(found, fields)] = told
    assert (found, fields["tx_id"], fields["home"]) == (CommitUnknownError.code, TX, ALONE)
    at.leases.held = True
    assert at.outcome(TX) == ["committed"]


def test_a_commit_is_unknown_at_once_if_one_of_its_partitions_is_served_by_another() -> None:
    at = Clients()
    told = at.commit(TX, ALONE, ALSO)
    at.sync_runs = lambda: at.seal(ALSO, 2, BOB)
    at.carry()
    assert code(told) == CommitUnknownError.code


def test_what_every_copy_has_is_answered_whoever_serves_it() -> None:
    at = Clients()
    told = at.commit(TX, SHARED)
    at.sync()
    assert told == []
    at.leases.held = False
    at.stored(SHARED, BOB)
    assert told == [(1000, [SHARED], [1], [1], [1])]


def test_a_copy_that_is_quicker_than_the_own_disk_is_not_waited_for_again() -> None:
    at = Clients()
    told = at.commit(TX, SHARED)
    at.sync_runs = lambda: at.streams.stored(BOB, StoredUpto(SHARED, 0, 1, 2), at.now)
    at.carry()
    assert told == [(1000, [SHARED], [1], [1], [1])]


def test_a_given_id_that_has_committed_is_answered_with_the_time_of_that() -> None:
    at = Clients()
    told = at.commit(NAMED, ALONE, given=True)
    at.carry()
    at.state.time = 5000
    again = at.commit(NAMED, ALONE, given=True)
    at.carry()
    assert (told[0][0], again[0][0]) == (1000, 1000)


# ------------------------------------------------------------------ refused


def test_of_one_id_one_commit_is_on_its_way() -> None:
    at = Clients()
    told = at.commit(TX, ALONE)
    assert code(at.commit(TX, ALONE)) == "wait"
    at.carry()
    assert len(told) == 1
    at.commit(OTHER, SHARED, THERE)
    assert code(at.commit(OTHER, ALONE)) == "wait"


def test_who_has_no_lease_or_names_another_epoch_queues_nothing() -> None:
    at = Clients()
    assert code(at.commit(TX, ALONE, epochs=[2])) in ("wait", "remap", "again")
    at.leases.held = False
    assert code(at.commit(TX, ALONE)) in ("wait", "remap")
    at.carry()
    assert at.records() == []


def test_a_commit_that_was_not_carried_out_in_time_is_not() -> None:
    at = Clients()
    told = at.commit(TX, ALONE, deadline=at.now + 1)
    at.now += 2
    at.carry()
    assert (code(told), at.records()) == (DeadlineError.code, [])


def test_who_was_refused_hears_why_though_the_log_does_not_take_the_others() -> None:
    at = Clients()
    late, told = at.commit(TX, ALONE, deadline=at.now + 1), at.commit(OTHER, ALSO)
    at.now += 2
    at.writer.fails = OSError(28, "no space")
    at.carry()
    assert (code(late), code(told)) == (DeadlineError.code, DiskFullError.code)


def test_a_commit_of_two_partitions_that_a_copy_comes_to_meanwhile_is_made_anew() -> None:
    at = Clients()
    told = at.commit(TX, ALONE, ALSO)
    at.streams.admit(ALSO, BOB, 9, at.now)
    at.carry()
    assert (code(told), at.records()) == ("wait", [])


def test_a_log_that_has_failed_says_so_where_nobody_else_has_what_it_holds() -> None:
    at = Clients()
    at.log.failure = DiskError("the disk is gone")
    for told in (at.commit(TX, ALONE), at.outcome(TX), at.commit(TX, ALONE, ALSO)):
        assert code(told) == DiskError.code
    assert code(at.commit(TX, SHARED)) == "wait", "Bob serves it soon"
    assert code(at.outcome(TX, home=SHARED)) == "wait"
    assert code(at.commit(TX, SHARED, THERE)) == "wait"
    assert at.led == {}


def test_what_a_log_has_not_taken_before_it_failed_comes_again_where_others_serve_it() -> None:
    at, later = Clients(), list[list[Any]]()

    def meanwhile() -> None:
        later.extend([at.commit(OTHER, ALSO), at.commit(FRESH, SHARED)])

    told = at.commit(TX, ALONE)
    at.sync_runs, at.writer.sync_fails = meanwhile, OSError(5, "input/output error")
    at.carry()
    assert code(told) == CommitUnknownError.code
    assert at.value(key_in(ALONE)) is None
    assert [code(one) for one in later] == [DiskError.code, "wait"]


def test_what_a_failed_log_has_not_taken_comes_again_if_others_serve_a_part_of_it() -> None:
    at, later = Clients(), list[list[Any]]()

    def meanwhile() -> None:
        later.append(at.commit(OTHER, ALONE, ALSO, number=1))
        at.streams.admit(ALSO, BOB, 9, at.now)
        at.streams.join(ALSO, BOB)

    at.commit(TX, ALONE)
    at.sync_runs, at.writer.sync_fails = meanwhile, OSError(5, "input/output error")
    at.carry()
    assert [code(one) for one in later] == ["wait"]


def test_one_value_may_be_larger_than_several_together() -> None:
    at, large = Clients(), bytes(SHARE_BYTES_MAX // 2)
    assert at.commit(TX, ALONE, value=2 * large) == []
    assert code(at.commit(OTHER, ALONE, ALSO, value=large)) == TransactionTooLargeError.code


def test_reads_that_take_long_to_confirm_are_refused_before_anything_is_looked_up() -> None:
    # Nothing of it is a commit: it is looked through in one piece, and for that it is too large.
    at = Clients()
    keys = [[99, [b"k"] * (READ_KEYS_MAX + 1), [], []]]
    ranges = [[99, b"", None, [ALONE], RANGE_KEYS_MAX + 1, b""]]
    for told_of in ([keys, []], [[], ranges]):
        told = at._ask(at.committing.commit, [TX, 1, False, None, *told_of, [], [], []], 999.0)
        assert code(told) == TransactionTooLargeError.code


def test_a_member_that_is_alone_takes_more_than_several_carry_in_one_piece() -> None:
    at = Clients()
    found = at.leases.topology
    at.leases.topology = replace(found, members={ME.member: found.members[ME.member]})
    told = at.commit(TX, ALONE, ALSO, value=bytes(SHARE_BYTES_MAX // 2 + 1))
    at.carry()
    assert told == [(1000, [ALONE, ALSO], [1, 1], [1, 1], [1, 1])]


def test_a_commit_that_did_not_get_into_the_log_can_be_asked_for() -> None:
    at = Clients()
    at.writer.fails = OSError(28, "no space")
    told = at.commit(TX, ALONE)
    at.carry()
    assert len(told) == 1
    assert at.outcome(TX) == []
    assert len(at.looked_up) == 1, "it is looked up, and not waited for"


def test_reads_are_not_confirmed_over_what_is_on_its_way_or_was_changed() -> None:
    at = Clients()
    assert at.commit(OTHER, read=[ALONE]) == [(1000, [], [], [], [])]
    at.commit(TX, ALONE)
    assert code(at.commit(OTHER, read=[ALONE])) == ConflictError.code
    at.carry()
    assert code(at.commit(OTHER, read=[ALONE])) == ConflictError.code


def test_who_loses_to_what_waits_for_a_silent_copy_comes_again() -> None:
    # Run again at once it would lose again, until that copy is out of the set.
    at = Clients()
    at.commit(TX, SHARED)
    at.sync()
    for later, found in ((0.0, ConflictError.code), (SILENT_S + 0.01, "wait")):
        at.now += later
        assert code(at.commit(OTHER, read=[SHARED])) == found
        written = at.commit(FRESH, SHARED, read=[SHARED], number=1)
        at.carry()
        assert code(written) == found
    at.stored(SHARED, BOB)
    assert code(at.commit(OTHER, read=[SHARED])) == ConflictError.code, "it has committed"


def test_who_comes_too_late_is_told_so_whatever_was_in_the_way() -> None:
    at = Clients()
    at.commit(TX, SHARED)
    at.sync()
    told = at.commit(FRESH, SHARED, read=[SHARED], number=1, deadline=at.now + 1)
    at.now += 2
    at.carry()
    assert code(told) == DeadlineError.code


def test_who_loses_to_what_has_committed_runs_again_whatever_else_waits_for_a_copy() -> None:
    at = Clients()
    at.commit(TX, SHARED)
    at.all_have(SHARED)
    at.commit(OTHER, SHARED, number=1)
    at.sync()
    at.now += SILENT_S + 0.01
    assert code(at.commit(FRESH, read=[SHARED])) == ConflictError.code


def test_reads_are_confirmed_beside_what_was_refused() -> None:
    at, seen = Clients(), list[list[Any]]()
    late, told = at.commit(TX, ALONE, deadline=at.now + 1), at.commit(OTHER, ALSO)
    at.now += 2
    at.sync_runs = lambda: seen.append(at.commit(FRESH, read=[ALONE]))
    at.carry()
    assert (code(late), len(told)) == (DeadlineError.code, 1)
    assert seen == [[(1000, [], [], [], [])]]


# ------------------------------------------------------------------ held


def held(at: Clients) -> tuple[list[Any], list[Any]]:
    """Let a commit wait for locks of another transaction, and somebody ask for its outcome."""
    at.commit_locks.lock(CID, lock(ALONE, FRESH))
    told, asked = at.commit(TX, ALONE), at.outcome(TX)
    assert (told, asked, at.looked_up, at.log.queued_bytes) == ([], [], [], 0)
    return told, asked


KEY = key_in(ALONE)


def let_go(at: Clients, key: bytes = KEY) -> None:
    owner = at.locks.in_way_of([key])
    assert owner is not None
    at.locks.release(owner)


def test_a_commit_that_waits_for_locks_goes_on_behind_them() -> None:
    at = Clients()
    told, asked = held(at)
    let_go(at)
    at.carry()
    assert (len(told), asked, at.looked_up) == (1, ["committed"], [])


def test_a_commit_that_is_refused_behind_locks_leaves_nobody_who_asks() -> None:
    at = Clients()
    told, asked = held(at)
    at.leases.held = False
    let_go(at)
    assert code(told) in ("wait", "remap")
    assert code(asked) in ("wait", "remap")


def test_a_commit_that_has_waited_too_long_for_locks_comes_again_and_is_not_on_its_way() -> None:
    at = Clients()
    told, asked = held(at)
    at.now += HELD_S_MAX + 0.001
    at.locks.tick()
    assert code(told) == "wait"
    assert (asked, len(at.looked_up)) == ([], 1)


def test_a_given_id_is_not_refused_while_another_attempt_has_it_locked() -> None:
    at = Clients()
    key = outcomes.outcome_key(NAMED, PARTITIONS)
    at.commit_locks.lock(CID, lock(ALONE, FRESH)._replace(keys=[key]))
    told = at.outcome(NAMED, given=True)
    at.carry()
    assert (told, at.records()) == ([], [])
    let_go(at, key)
    at.carry()
    assert told == ["rolled_back"]


def test_an_open_transaction_that_commits_has_no_locks_any_more() -> None:
    # Its client tells only who keeps it that it has ended, and others would wait for it.
    at, name = Clients(), b"1" * 16
    wanted = AcquireWanted(1, name, [ALONE], [1], [KEY], True, False, None, 10_000_000)
    at.plain.acquire(ME, wanted)
    assert at.plain.has(name, ALONE)
    writes = [[MAP, [name_in(ALONE)], [b"v"]]]
    arguments = [TX, 1, False, None, [], [], writes, [ALONE], [1]]
    connection: Any = SimpleNamespace(send=lambda _message: None)
    request = ClientRequest(connection, 99, float("inf"), "", arguments)
    request.opened = name
    request.carry_out(at.committing.commit)
    at.carry()
    assert at.value(KEY) == b"v"
    assert not at.plain.has(name, ALONE)
    assert at.locks.in_way_of([KEY]) is None


# ------------------------------------------------------------------ of several groups


def test_what_others_have_or_serve_too_is_led_and_its_home_is_written() -> None:
    at = Clients()
    at.commit(TX, SHARED, ALONE)
    at.commit(OTHER, ALONE, THERE)
    at.commit(FRESH, ALSO, read=[SHARED])
    assert at.homes == [SHARED, ALONE, ALSO]
    assert at.log.queued_bytes == 0


def test_what_was_led_is_acknowledged_once_it_has_committed() -> None:
    at = Clients()
    told = at.commit(TX, ALONE, read=[SHARED])
    at.led[TX](None, 7, TX, [Run(ALONE, 1, 5, 1)])
    assert told == [(7, [ALONE], [1], [5], [1])]
    assert at.acknowledged == [(TX, [ALONE, 1, 5, 1])]


def test_nothing_is_led_that_a_member_may_not_begin_or_nobody_can_end() -> None:
    at = Clients()
    assert code(at.commit(TX, ALONE, THERE, epochs=[2, 1])) in ("wait", "remap", "again")
    at.decide(away=(CID,))
    assert code(at.commit(TX, ALONE, THERE)) not in ("wait", "remap")
    at.decide()
    at.leases.held = False
    assert code(at.commit(TX, ALONE, THERE)) in ("wait", "remap")
    assert at.led == {}


# ------------------------------------------------------------------ outcomes


def test_what_was_asked_about_before_it_came_is_refused_then() -> None:
    at = Clients()
    at.outcome(TX)
    assert code(at.commit(TX, ALONE)) == code(at.commit(TX, ALONE, THERE)) == "TL-TX-006"
    assert at.commit(OTHER, ALONE) == []
    at.carry()
    assert [tx_id for tx_id, _ in at.acknowledged] == [OTHER]


def test_an_id_of_a_user_is_of_use_though_somebody_asked_for_it_as_for_any_other() -> None:
    """It was refused until the member was started again, whatever the attempt."""
    at = Clients()
    at.outcome(NAMED)
    assert at.commit(NAMED, ALONE, given=True) == []


def test_who_asks_for_what_is_on_its_way_hears_of_its_end() -> None:
    at = Clients()
    at.commit(TX, ALONE)
    told = at.outcome(TX)
    at.carry()
    at.committing.tick()
    assert (told, at.looked_up) == (["committed"], [])
    at.commit(OTHER, ALONE, THERE)
    assert (at.outcome(OTHER), at.looked_up) == ([], [])


def test_the_newest_commits_are_known_without_a_look_into_the_log() -> None:
    at = Clients()
    for number, tx_id in enumerate((TX, OTHER, FRESH)):
        if tx_id == FRESH:
            others = [b"%016d" % one for one in range(RECENT_MAX - 2)]
            at.committing._recent.update(dict.fromkeys(others))
        at.commit(tx_id, ALONE, number=number)
        at.carry()
    assert [at.outcome(tx_id) for tx_id in (OTHER, FRESH)] == [["committed"]] * 2
    assert at.outcome(TX) == []
    assert len(at.looked_up) == 1


def test_what_was_looked_up_is_told_under_a_lease_only() -> None:
    at = Clients()
    told, late = at.outcome(TX), at.outcome(OTHER)
    at.looked_up[0]("rolled_back")
    at.leases.held = False
    at.looked_up[1]("rolled_back")
    assert told == ["rolled_back"]
    assert code(late) in ("wait", "remap")
    assert code(at.outcome(TX)) in ("wait", "remap")
    assert len(at.looked_up) == 2


def test_a_home_that_is_no_partition_is_not_understood() -> None:
    at = Clients()
    assert code(at.outcome(TX, home=PARTITIONS)) == code(at.outcome(TX, home=-1))
    at.leases.held = False
    assert code(at.outcome(TX, home=PARTITIONS)) == code(at.outcome(TX, home=-1))


def test_a_given_id_that_has_not_committed_is_refused_with_a_higher_attempt_each_time() -> None:
    at = Clients()
    for attempt in (2, 4):
        told, too = at.outcome(NAMED, given=True), at.outcome(NAMED, given=True)
        assert code(at.commit(NAMED, ALONE, given=True)) == "wait"
        at.carry()
        assert told == too == ["rolled_back"]
        entry = at.entry(NAMED)
        assert entry is not None
        assert entry == (outcomes.Kind.REFUSED, 1000, attempt, ())
    at.may_be_lost = True
    told = at.outcome(NAMED, given=True)
    at.carry()
    assert told == ["rolled_back"], "what is there has not been lost"


def test_a_given_id_that_has_committed_is_told_by_its_entry() -> None:
    at = Clients()
    at.commit(NAMED, ALONE, given=True)
    at.carry()
    at.committing._recent.clear()
    at.may_be_lost = True
    assert at.outcome(NAMED, given=True) == ["committed"]


def test_a_given_id_is_not_refused_if_its_entry_may_be_lost() -> None:
    at = Clients()
    at.may_be_lost = True
    assert at.outcome(NAMED, given=True) == ["too_old"]
    at.carry()
    assert at.records() == []


def test_nothing_is_refused_durably_where_too_few_copies_are_in_sync() -> None:
    at = Clients()
    at.leases.topology = replace(at.leases.topology, min_in_sync=2)
    assert code(at.outcome(NAMED, given=True)) == TooFewCopiesError.code
    assert at.log.queued_bytes == 0


def test_a_refusal_that_no_copy_confirms_before_its_epoch_ends_is_asked_for_again() -> None:
    at = Clients()
    told = at.outcome(NAMED_SHARED, given=True)
    at.sync()
    assert told == []
    at.seal(SHARED, 2, BOB)
    assert code(told) == "wait"


def test_a_refusal_that_the_log_does_not_take_is_an_error_unless_others_will_serve() -> None:
    errors = {"fails": OSError(28, "no space"), "sync_fails": OSError(5, "input/output error")}
    for named, what, found in (
        (NAMED, "fails", DiskFullError.code),
        (NAMED_SHARED, "fails", DiskFullError.code),
        (NAMED, "sync_fails", CommitUnknownError.code),
        (NAMED_SHARED, "sync_fails", "wait"),
    ):
        at = Clients()
        setattr(at.writer, what, errors[what])
        told = at.outcome(named, given=True)
        at.carry()
        assert code(told) == found


def test_a_refusal_is_not_written_behind_its_epoch_nor_told_without_a_lease() -> None:
    at = Clients()
    told = at.outcome(NAMED, given=True)
    at.seal(ALONE, 2, BOB)
    at.carry()
    assert (at.records(), told == ["rolled_back"], len(told)) == ([], False, 1)
    at = Clients()
    told = at.outcome(NAMED, given=True)
    lease_ends_in_sync(at)
    at.carry()
    assert code(told) in ("wait", "remap")


def test_who_meets_a_failed_sync_of_a_new_segment_comes_again_where_others_serve() -> None:
    at, error = Clients(), OSError(5, "input/output error")

    def rotate() -> None:
        at.writer.failure = error
        raise error

    at.writer.append = lambda payload: False  # type: ignore[method-assign]  # it does not fit
    at.writer.rotate = rotate  # type: ignore[method-assign]
    told = at.commit(TX, SHARED)
    at.carry()
    assert [code(told), code(at.commit(OTHER, SHARED))] == ["wait", "wait"]
