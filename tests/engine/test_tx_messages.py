"""What members say of transactions of several groups arrives as it was told, or is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from support.messages import messages_of
from tidelog.affinity import errors
from tidelog.engine.data.scan import Range
from tidelog.engine.data.stored import pack_prefix
from tidelog.engine.net.failures import Failure
from tidelog.engine.net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from tidelog.engine.net.kinds import BY_NAME, DATA, checked_message
from tidelog.engine.node.partitions import RoutedError
from tidelog.engine.node.transactions import Transactions
from tidelog.engine.node.tx_messages import (
    KINDS,
    AcquireWanted,
    ConfirmWanted,
    EarlierError,
    FoundAt,
    GroupOutcome,
    LockProbe,
    LockWanted,
    PinnedHere,
    PreparedAtPin,
    PreparedPart,
    PrepareWanted,
    Question,
    ReadKey,
    ReadSpan,
    RefusedPart,
    TooOldPart,
    acquire_message,
    acquired_message,
    answer_message,
    confirm_message,
    decision_message,
    error_told,
    forget_message,
    held_message,
    ids_message,
    lock_message,
    pin_message,
    pinned_message,
    prepare_message,
    prepared_message,
    probe_message,
    question_message,
    refused_message,
    resume_message,
    settled_message,
    told_failure,
    told_of,
    too_old_message,
    unlock_message,
)
from tidelog.errors import (
    CommitUnknownError,
    ConflictError,
    RolledBackError,
    ServerError,
    TidelogError,
)
from tidelog.wal.records import Participant, Run

TX, OTHER, NEAR = b"a transaction's "[:16], b"another one's id", b"the near member!"
MAP = 16


def key(partition: int, name: bytes = b"k", number: int = MAP) -> bytes:
    return pack_prefix(partition, number) + name


KEYS = [key(2, b""), key(2, b"k" * 480)]
READS = [ReadKey(key(2), 1, 7), ReadKey(key(2, b"absent", 17), 0, 0)]
RANGES = [ReadSpan(MAP, b"", None, 0, b"d" * 16), ReadSpan(17, b"a", b"b", 3, b"")]
FAILURE = Failure("TL-TX-001", "a key", {"key": b"k", "winner": None})
LOCK = LockWanted(7, TX, 1, None, 2, 3, KEYS)
CONFIRM = ConfirmWanted(7, 2, READS, RANGES)
PREPARE = PrepareWanted(
    7, TX, 1, None, None, 1, (Participant(1, 4, 1), Participant(2, 3, 2)), True, 2, 3, KEYS,
    [b"", None], READS, RANGES, [],
)  # fmt: skip
GIVEN = PREPARE._replace(given=OTHER, tag="t", locked=False, shared=[key(2, b"s")])
PREPARED = PreparedPart(TX, 1, Run(2, 3, 11, 2), 1 << 50)
COMMITTED = GroupOutcome(TX, 1, (Run(1, 4, 1, 1), Run(2, 3, 11, 2)), 5)
ROLLED_BACK = GroupOutcome(TX, 2, (), 0)
QUESTION = Question(TX, 1, (NEAR, 4), 2, 3)
WENT_BACK = QUESTION._replace(went_back=True)
SETTLED = [(0, 1, TX), (0, 2, OTHER)]
SNAPSHOT = b"of a whole store"
PINNED = PinnedHere(
    SNAPSHOT, 2, 9, [1, 2], [PreparedAtPin(1, TX, [1, 5]), PreparedAtPin(2, OTHER, [2])], [(2, TX)]
)
ACQUIRE = AcquireWanted(7, TX, [2, 4], [3, 1], KEYS, True, False, None, 1000)
RANGE = ACQUIRE._replace(keys=[], exclusive=False, within=Range(namespace=MAP, start=b"a"))
FOUND = [FoundAt(b"value", 3, 11), FoundAt(None, 0, 0)]
PROBE = LockProbe(TX, [TX, OTHER], 7, 2, waits=True)
NOTHING_PINNED = PinnedHere(SNAPSHOT, 0, 0, [], [], [])

TOLD: list[tuple[str, Message, Any]] = [
    ("lock", lock_message(LOCK), LOCK),
    ("lock", lock_message(LOCK._replace(given=OTHER)), LOCK._replace(given=OTHER)),
    ("locked", answer_message("locked", 7, 2, None), (7, 2, None)),
    ("locked", answer_message("locked", 7, 2, FAILURE), (7, 2, FAILURE)),
    ("unlock", unlock_message(7, [1, 2]), (7, [1, 2], None)),
    ("confirm", confirm_message(CONFIRM), CONFIRM),
    ("confirmed", answer_message("confirmed", 7, 2, None), (7, 2, None)),
    ("confirmed", answer_message("confirmed", 7, 2, FAILURE), (7, 2, FAILURE)),
    ("prepare", prepare_message(PREPARE), PREPARE),
    ("prepare", prepare_message(GIVEN), GIVEN),
    ("prepared", prepared_message(PREPARED), PREPARED),
    (
        "refused",
        refused_message(RefusedPart(TX, 1, 2, FAILURE)),
        RefusedPart(TX, 1, 2, FAILURE),
    ),
    ("decision", decision_message(COMMITTED, [1, 2]), (COMMITTED, [1, 2])),
    ("decision", decision_message(ROLLED_BACK, [3]), (ROLLED_BACK, [3])),
    ("question", question_message(QUESTION), QUESTION),
    ("question", question_message(WENT_BACK), WENT_BACK),
    ("too-old", too_old_message(TooOldPart(TX, 1, 2)), TooOldPart(TX, 1, 2)),
    (
        "settled",
        settled_message("settled", [(0, 1, TX), (0, 2, OTHER)]),
        [(0, 1, TX), (0, 2, OTHER)],
    ),
    ("settled", settled_message("settled", []), []),
    ("ask-settled", settled_message("ask-settled", [(0, 1, TX)]), [(0, 1, TX)]),
    ("forget", forget_message([(1, TX), (2, OTHER)]), [(1, TX), (2, OTHER)]),
    ("lock", lock_message(LOCK._replace(opened=OTHER)), LOCK._replace(opened=OTHER)),
    ("confirm", confirm_message(CONFIRM._replace(opened=OTHER)), CONFIRM._replace(opened=OTHER)),
    ("prepare", prepare_message(PREPARE._replace(opened=OTHER)), PREPARE._replace(opened=OTHER)),
    ("acquire", acquire_message(ACQUIRE), ACQUIRE),
    ("acquire", acquire_message(RANGE), RANGE),
    ("acquired", acquired_message(7, TX, FOUND, None), (7, TX, FOUND, None)),
    ("acquired", acquired_message(7, TX, None, FAILURE), (7, TX, None, FAILURE)),
    ("give-back", ids_message("give-back", [TX, OTHER]), ([TX, OTHER],)),
    ("probe", probe_message(PROBE), PROBE),
    ("ask-over", ids_message("ask-over", [TX, OTHER]), ([TX, OTHER],)),
    ("over", ids_message("over", [OTHER]), ([OTHER],)),
    ("pin", pin_message(SNAPSHOT, 1, 9), (SNAPSHOT, 1, 9)),
    ("pinned", pinned_message(PINNED), PINNED),
    ("pinned", pinned_message(NOTHING_PINNED), NOTHING_PINNED),
    ("resume", resume_message(SNAPSHOT, 1), (SNAPSHOT, 1)),
    ("held", held_message(SNAPSHOT, 1, still=True), (SNAPSHOT, 1, True)),
    ("held", held_message(SNAPSHOT, 1, still=False), (SNAPSHOT, 1, False)),
]


def arrived(message: Message) -> Message:
    """A message behind its way over the wire."""
    [found] = FrameDecoder(KNOWN).feed(frame([pack_message(message)]))
    return checked_message(found, DATA)


@pytest.mark.parametrize(("kind", "message", "told"), TOLD)
def test_what_is_told_arrives_as_it_was_told(kind: str, message: Message, told: Any) -> None:
    assert message[0] == BY_NAME[kind].number
    assert told_of(arrived(message)) == told
    found = told_of(arrived(message))
    assert type(found) is type(told)


def test_every_kind_is_told_here_and_nothing_else_is_taken() -> None:
    assert {kind for kind, _, _ in TOLD} == KINDS
    assert all(map(Transactions.takes, KINDS))
    assert not Transactions.takes("replicate")


def test_only_what_has_numbers_commits() -> None:
    assert (COMMITTED.commits, ROLLED_BACK.commits) == (True, False)


# ------------------------------------------------------------------ what cannot be


def put(name: str, value: Any) -> tuple[str, Any]:
    return name, value


WRONG_IN_LOCK = [
    put("ask", -1), put("tx", TX[:15]), put("tx", TX + b"x"), put("attempt", -1),
    put("given", b""), put("given", OTHER[:15]), put("partition", -1), put("partition", 3),
    put("epoch", -3), put("keys", [key(2), key(3)]), put("keys", [key(2)[:7]]),
    put("keys", [b""]), put("opened", b"short"),
]  # fmt: skip
WRONG_READS = [
    [b"k"], [[]], [[key(2), 1]], [[key(2), 1, 7, 8]], [[key(3), 1, 7]], [[key(2)[:7], 1, 7]],
    [["text", 1, 7]], [[None, 1, 7]], [[key(2), -1, 7]], [[key(2), 1, -7]], [[key(2), None, 7]],
    [[key(2), 1, 7.0]], [[key(2), b"1", 7]], [[key(2), 1, "7"]], [[key(2), [1], 7]],
]  # fmt: skip
WRONG_RANGES = [
    [[]], [[MAP, b"", None, 0]], [[MAP, b"", None, 0, b"", b""]], [[-1, b"", None, 0, b""]],
    [["m", b"", None, 0, b""]], [[None, b"", None, 0, b""]], [[MAP, "", None, 0, b""]],
    [[MAP, None, None, 0, b""]], [[MAP, b"", "a", 0, b""]], [[MAP, b"", "", 0, b""]],
    [[MAP, b"", 0, 0, b""]], [[MAP, b"", False, 0, b""]], [[MAP, b"", [], 0, b""]],
    [[MAP, b"", None, -1, b""]], [[MAP, b"", None, None, b""]], [[MAP, b"", None, 1.5, b""]],
    [[MAP, b"", None, 0, None]], [[MAP, b"", None, 0, 0]], [[True, b"", None, 0, b""]],
    [[1 << 32, b"", None, 0, b""]],
]  # fmt: skip
WRONG_IN_CONFIRM = [
    put("ask", -1), put("ask", 1 << 63), put("partition", -2), put("opened", b"short"),
    *(put("reads", rows) for rows in WRONG_READS),
    *(put("ranges", rows) for rows in WRONG_RANGES),
]  # fmt: skip
WRONG_IN_PREPARE = [
    put("ask", -1), put("tx", b""), put("attempt", -1), put("given", b"given"),
    put("home", -1), put("participants", []), put("participants", [2, 3]),
    put("participants", [1, 4, 1, 2, 3, 1]), put("participants", [1, 4, 1, 2, 2, 2]),
    put("participants", [1, 4, 1, 2, 3, 2, 5]), put("participants", [2, 3, 2, 1, 4, -1]),
    put("participants", [2, 3, 2, 1, 4, 0]), put("participants", [2, 3, 2, 2, 4, 1]),
    put("partition", 1), put("partition", -2), put("epoch", 4), put("epoch", -3),
    put("keys", []), put("keys", KEYS[:1]), put("keys", [KEYS[0], KEYS[0]]),
    put("keys", [KEYS[0], key(1)]), put("keys", [KEYS[0], b"short"]),
    put("values", []), put("values", [b""]), put("values", [b"", None, None]),
    put("values", [b"", 0]), put("values", [b"", "text"]), put("values", [[], b""]),
    put("shared", [key(3)]), put("shared", [b"short"]), put("opened", b""),
    *(put("reads", rows) for rows in WRONG_READS),
    *(put("ranges", rows) for rows in WRONG_RANGES),
]  # fmt: skip
WRONG_IN_ACQUIRE = [
    put("ask", -1), put("name", b"short"), put("partitions", [2]), put("partitions", [2, 2]),
    put("partitions", [2, -4]), put("epochs", [3]), put("epochs", [3, -1]),
    put("keys", [key(3)]), put("keys", [key(2)[:7]]), put("wait_us", -1), put("wait_us", 1 << 63),
    *(put("range", row) for row in [
        [], [MAP], [MAP, b"a", b"b", 1], ["m", b"a", None], [-1, b"a", None], [None, b"a", None],
        [1 << 32, b"a", None], [MAP, None, None], [MAP, "a", None], [MAP, b"a", 1],
    ]),
]  # fmt: skip
WRONG_FAILURES = [
    [], ["code"], ["code", "message"], ["code", "message", {}, 1], [1, "message", {}],
    ["code", None, {}], ["code", b"message", {}], ["code", "message", []],
    ["code", "message", None],
]  # fmt: skip

WRONG: list[tuple[Message, str, Any]] = [
    *((lock_message(LOCK), *wrong) for wrong in WRONG_IN_LOCK),
    *((confirm_message(CONFIRM), *wrong) for wrong in WRONG_IN_CONFIRM),
    *((prepare_message(PREPARE), *wrong) for wrong in WRONG_IN_PREPARE),
    *(
        (answer_message(kind, 7, 2, FAILURE), *wrong)
        for kind in ("locked", "confirmed")
        for wrong in [
            put("ask", -1), put("partition", -1), *(put("failure", row) for row in WRONG_FAILURES)
        ]
    ),
    *(
        (prepared_message(PREPARED), *wrong)
        for wrong in [
            put("tx", b"short"), put("attempt", -1), put("time", -1),
            put("time", 1 << 63), put("run", []),
            put("run", [2, 3, 11]), put("run", [2, 3, 11, 2, 1]),
            put("run", [2, 3, 11, 2, 1, 4, 1, 1]), put("run", [2, 3, -11, 2]),
        ]
    ),
    *(
        (refused_message(RefusedPart(TX, 1, 2, FAILURE)), *wrong)
        for wrong in [
            put("tx", b"short"), put("attempt", -1), put("partition", -1),
            *(put("failure", row) for row in WRONG_FAILURES),
        ]
    ),
    *(
        (decision_message(COMMITTED, [1, 2]), *wrong)
        for wrong in [
            put("tx", b"short"), put("attempt", -1), put("time", -1), put("runs", [1, 4, 1]),
            put("runs", [1, 4, 1, 1, 2]), put("runs", [1, 4, 1, 1, 2, 3, -1, 2]),
            put("runs", [1, 4, 1, 1]), put("partitions", [1, 3]), put("partitions", [-1]),
        ]
    ),
    *(
        (question_message(QUESTION), *wrong)
        for wrong in [
            put("tx", b"short"), put("attempt", -1), put("near", NEAR[:15]), put("boot", -1),
            put("partition", -1), put("epoch", -1),
        ]
    ),
    *(
        (settled_message(kind, [(0, 1, TX)]), *wrong)
        for kind in ("settled", "ask-settled")
        for wrong in [
            put("collectors", []), put("collectors", [-1]), put("partitions", [1, 2]),
            put("partitions", [-1]), put("txs", []), put("txs", [b"short"]), put("txs", [TX, TX]),
        ]
    ),
    *(
        (forget_message([(1, TX)]), *wrong)
        for wrong in [
            put("partitions", []), put("partitions", [-1]), put("txs", [b"short"]),
            put("txs", [TX, TX]),
        ]
    ),
    *((acquire_message(ACQUIRE), *wrong) for wrong in WRONG_IN_ACQUIRE),
    *(
        (acquired_message(7, TX, FOUND, FAILURE), *wrong)
        for wrong in [
            put("ask", -1), put("name", b"short"), *(put("failure", row) for row in WRONG_FAILURES),
            *(put("found", [row]) for row in [
                1, [], [b"value", 3], [b"value", 3, 11, 1], ["value", 3, 11], [b"value", -3, 11],
                [b"value", 3, None], [b"value", 3, 1.5],
            ]),
        ]
    ),
    *(
        (probe_message(PROBE), *wrong)
        for wrong in [
            put("initiator", b"short"), put("path", []), put("path", [TX, b"short"]),
            put("ask", -1), put("round", -1),
        ]
    ),
    (ids_message("give-back", [TX]), "names", [TX, b"short"]),
    (unlock_message(7, [1, 2]), "ask", -1),
    (unlock_message(7, [1, 2]), "partitions", [1, -2]),
    (ids_message("ask-over", [TX]), "txs", [TX, b"short"]),
    (ids_message("over", [TX]), "txs", [b""]),
    (pin_message(SNAPSHOT, 1, 9), "snapshot", b"short"),
    (resume_message(SNAPSHOT, 1), "snapshot", b"short"),
    (held_message(SNAPSHOT, 1, still=True), "snapshot", b""),
    *(
        (pinned_message(PINNED), *wrong)
        for wrong in [
            *(put("prepared", [row]) for row in [
                [], 1, b"row", [1, TX], [1, TX, [1], 1], ["1", TX, [1]], [-1, TX, [1]],
                [1, TX[:15], [1]], [1, None, [1]], [1, TX, [-1]], [1, TX, ["1"]], [1, TX, 1],
            ]),
            *(put("committed", [row]) for row in [
                [], 1, [1], [1, TX, 1], ["1", TX], [-1, TX], [1, b"short"], [1, None],
            ]),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("message", "name", "value"), WRONG)
def test_a_field_that_cannot_be_right_is_refused(message: Message, name: str, value: Any) -> None:
    kind = next(one for one in BY_NAME.values() if one.number == message[0])
    place = [field.name for field in kind.fields].index(name) + 1
    wrong = [*message[:place], value, *message[place + 1 :]]
    with pytest.raises(FrameError, match=kind.name):
        told_of(arrived(wrong))


@given(st.sampled_from(sorted(KINDS)).flatmap(lambda name: messages_of(BY_NAME[name])))
def test_of_any_message_comes_what_it_tells_or_a_frame_error(message: Message) -> None:
    with suppress(FrameError):
        told_of(checked_message(message, DATA))


hostile = st.recursive(
    st.none() | st.booleans() | st.floats() | st.binary(max_size=20) | st.text(max_size=4)
    | st.integers(min_value=-(2**63), max_value=2**64 - 1)
    | st.sampled_from([TX, OTHER, key(2), key(3), 2, 3]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)  # fmt: skip


@given(st.sampled_from(TOLD), st.data())
def test_of_a_message_with_one_hostile_field_comes_what_it_tells_or_a_frame_error(
    told: tuple[str, Message, Any], data: st.DataObject
) -> None:
    message = list(told[1])
    place = data.draw(st.integers(1, len(message) - 1))
    if isinstance(message[place], list) and message[place] and data.draw(st.booleans()):
        inner = data.draw(st.integers(0, len(message[place]) - 1))
        value = list(message[place])
        if isinstance(value[inner], list | tuple) and value[inner]:
            row = list(value[inner])
            row[data.draw(st.integers(0, len(row) - 1))] = data.draw(hostile)
            value[inner] = row
        else:
            value[inner] = data.draw(hostile)
        message[place] = value
    else:
        message[place] = data.draw(hostile)
    with suppress(FrameError):
        told_of(checked_message(message, DATA))


# ------------------------------------------------------------------ errors that travel


def travelled(error: TidelogError) -> TidelogError:
    """An error behind its way to another member."""
    part = RefusedPart(TX, 1, 2, told_failure(error))
    found = error_told(told_of(arrived(refused_message(part))).failure)
    assert isinstance(found, TidelogError)
    return found


@pytest.mark.parametrize("answer", ["remap", "wait", "again"])
def test_what_users_never_see_travels_with_its_answer(answer: str) -> None:
    found = travelled(RoutedError(answer, "why"))
    assert type(found) is RoutedError
    assert (found.answer, str(found), found.hint) == (answer, "why", "")
    found = travelled(RoutedError(answer, "why", "what to do"))
    assert found.hint == "what to do"


def test_an_earlier_commit_travels_with_its_time() -> None:
    found = travelled(EarlierError(77))
    assert isinstance(found, EarlierError)
    assert found.time == 77


def test_an_earlier_commit_without_a_time_is_no_earlier_commit() -> None:
    for fields in ({}, {"time": None}, {"time": "5"}):
        found = error_told(Failure("earlier", "why", dict(fields)))
        assert type(found) is ServerError


def test_other_errors_travel_as_they_are() -> None:
    lost = travelled(ConflictError("lost", namespace="m", key=b"k", winner=OTHER))
    assert isinstance(lost, ConflictError)
    assert (str(lost), lost.namespace, lost.key, lost.winner) == ("lost", "m", b"k", OTHER)
    refused = RolledBackError("refused")
    refused.attempt = 4
    found = travelled(refused)
    assert isinstance(found, RolledBackError)
    assert found.attempt == 4
    unknown = travelled(CommitUnknownError("unknown", tx_id=TX, home=3))
    assert isinstance(unknown, CommitUnknownError)
    assert (unknown.tx_id, unknown.home) == (TX, 3)


CODES = sorted(
    {one.code for one in vars(errors).values() if isinstance(one, type)
     and issubclass(one, TidelogError)} | {"earlier", "remap", "nonsense"}
)  # fmt: skip
NAMES = ["hint", "time", "tx_id", "home", "key", "winner", "namespace", "attempt", "partition"]


@given(
    st.sampled_from(CODES), st.text(max_size=5), st.dictionaries(st.sampled_from(NAMES), hostile)
)
def test_any_failure_is_an_error_of_ours(code: str, text: str, fields: dict[str, object]) -> None:
    assert isinstance(error_told(Failure(code, text, fields)), TidelogError)
