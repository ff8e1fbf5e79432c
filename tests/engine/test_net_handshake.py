"""Who may connect: a table of introductions, and which connections of a member still count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from tidelog.engine.net.frames import STRANGER, FrameDecoder, FrameError, frame, pack_message
from tidelog.engine.net.handshake import (
    Introduction,
    Refusal,
    heard,
    judge_answer,
    judge_caller,
)
from tidelog.engine.net.kinds import CONTROL, DATA, Channel
from tidelog.engine.net.links import Links

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
OURS, THEIRS = b"1" * 16, b"2" * 16

HERE = Introduction(role="member", channel="control", member=A, cluster=OURS, boot=3)
THERE = Introduction(
    role="member",
    channel="control",
    member=B,
    cluster=OURS,
    boot=5,
    number=9,
    decided=40,
    nonce=b"fresh",
    wanted=A,
)
TOOL = Introduction(role="tool", channel="client", member=C)


def known() -> Links:
    """Of B the connections 8 (control) and 12 (data) of boot 5 have been accepted."""
    links = Links()
    links.accept(B, "control", 5, 8)
    links.accept(B, "data", 5, 12)
    return links


def standing(member: bytes, boot: int, nonce: bytes) -> str | None:
    if member == B and boot in (4, 6):
        return "gone"
    return "copy" if nonce == b"another disk" else None


CALLERS: list[tuple[str, Introduction, str | None]] = [
    ("a newer connection", THERE, None),
    ("another class", replace(THERE, channel="data", number=13), None),
    ("a newer boot counts from the beginning", replace(THERE, boot=7, number=1), None),
    ("a member that is new", replace(THERE, member=C, boot=1, number=1), None),
    ("a member without a cluster", replace(THERE, cluster=b""), None),
    ("a member that takes whoever is there", replace(THERE, wanted=b""), None),
    ("a member that is to reach another one", replace(THERE, wanted=C), "member"),
    ("a tool", TOOL, None),
    ("a client that knows the cluster", replace(TOOL, role="client", cluster=OURS), None),
    ("later versions, and this one", replace(THERE, version_max=7), None),
    ("another cluster", replace(THERE, cluster=THEIRS), "cluster"),
    ("a client of another cluster", replace(TOOL, cluster=THEIRS), "cluster"),
    ("later versions only", replace(THERE, version_min=2, version_max=7), "version"),
    ("earlier versions only", replace(THERE, version_min=0, version_max=0), "version"),
    ("gone", replace(THERE, boot=6), "gone"),
    ("gone and older", replace(THERE, boot=4), "gone"),
    ("another disk", replace(THERE, nonce=b"another disk"), "copy"),
    ("a client with some nonce", replace(TOOL, nonce=b"another disk"), None),
    ("an older boot", replace(THERE, boot=3, number=99), "boot"),
    ("the same number again", replace(THERE, number=8), "number"),
    ("an older number", replace(THERE, number=7), "number"),
    ("an older number of its class", replace(THERE, channel="data"), "number"),
    ("a member as a client", replace(THERE, channel="client"), "role"),
    ("a client as a member", replace(TOOL, channel="data"), "role"),
]


@pytest.mark.parametrize(("name", "caller", "code"), CALLERS, ids=[row[0] for row in CALLERS])
def test_a_caller_is_accepted_or_refused(name: str, caller: Introduction, code: str | None) -> None:
    refusal = judge_caller(HERE, caller, links=known(), standing=standing)
    assert (refusal and refusal.code) == code, name


MINE = replace(HERE, number=9)
ANSWERS: list[tuple[str, Introduction, str | None]] = [
    ("the peer", THERE, None),
    ("the peer under a newer boot", replace(THERE, boot=7), None),
    ("another member", replace(THERE, member=C), "member"),
    ("a client", replace(THERE, role="client"), "member"),
    ("for another connection", replace(THERE, number=8), "number"),
    ("for another class", replace(THERE, channel="data"), "number"),
    ("another cluster", replace(THERE, cluster=THEIRS), "cluster"),
    ("other versions", replace(THERE, version_min=2, version_max=3), "version"),
    ("gone", replace(THERE, boot=6), "gone"),
    ("another disk", replace(THERE, nonce=b"another disk"), "copy"),
    ("an older boot", replace(THERE, boot=3), "boot"),
]


@pytest.mark.parametrize(("name", "answer", "code"), ANSWERS, ids=[row[0] for row in ANSWERS])
def test_an_answer_is_accepted_or_refused(
    name: str, answer: Introduction, code: str | None
) -> None:
    refusal = judge_answer(MINE, answer, expected=B, links=known(), standing=standing)
    assert (refusal and refusal.code) == code, name


def test_who_expects_nobody_takes_whoever_answers() -> None:
    answer = replace(THERE, member=C)
    assert judge_answer(MINE, answer, expected=None, links=Links(), standing=standing) is None


def test_a_refusal_says_what_was_expected_and_what_was_found() -> None:
    refusal = judge_caller(HERE, replace(THERE, boot=3), links=known(), standing=standing)
    assert refusal == Refusal("boot", "boot 3 is over: 5 has been seen here")
    refusal = judge_caller(HERE, replace(THERE, boot=6), links=known(), standing=standing)
    assert refusal == Refusal("gone", "boot 6 of this member is out of the topology")
    # It named the boot of the attempt, which grew with each.
    lost = judge_caller(HERE, THERE, links=known(), standing=lambda *_member: "lost")
    told = "this member was declared lost: others go on without what its disk has"
    assert lost == Refusal("lost", told)
    refusal = judge_caller(
        HERE, replace(THERE, version_min=2, version_max=7), links=known(), standing=standing
    )
    assert refusal == Refusal(
        "version", "versions 2 to 7 of the wire are spoken there, and 1 to 1 here"
    )


@pytest.mark.parametrize("what", [THERE, TOOL, Refusal("gone", "out")], ids=repr)
def test_the_first_message_is_heard_as_it_was_said(what: Introduction | Refusal) -> None:
    [message] = FrameDecoder(STRANGER).feed(frame([pack_message(what.message())]))
    assert heard(message) == what
    assert heard([*message, "from a later version"]) == what


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 15), (0, 3), (1, b"another"), (4, "friend"), (5, "every"), (6, 1), (6, b"short"),
        (7, b""), (7, b"short"), (8, None), (8, -1), (9, -1), (10, -1), (11, "text"), (12, None),
    ],
)  # fmt: skip
def test_a_first_message_that_is_something_else_is_refused(at: int, value: object) -> None:
    message = THERE.message()
    message[at] = value
    with pytest.raises(FrameError):
        heard(message)


def test_what_arrives_on_an_older_connection_does_not_count() -> None:
    links = known()
    assert links.counts(B, "control", 5, 8)
    links.accept(B, "control", 5, 9)
    assert not links.counts(B, "control", 5, 8)
    assert links.counts(B, "control", 5, 9)
    assert links.counts(B, "data", 5, 12)


def test_a_newer_boot_ends_the_connections_of_all_classes() -> None:
    links = known()
    links.accept(B, "control", 6, 1)
    assert not links.counts(B, "data", 5, 12)
    assert not links.admits(B, "data", 5, 13)
    assert links.admits(B, "data", 6, 1)


def test_a_boot_counts_against_lower_ones_while_there_are_connections_with_it() -> None:
    # A refused disk that had been started often kept the right one, started less, out for good.
    links = known()
    links.accept(B, "control", 9, 1)
    links.meet(B, 9)
    links.left(B, 9)
    assert links.boot_of(B) == 9
    assert not links.admits(B, "control", 6, 1)
    links.left(B, 9)
    assert links.boot_of(B) == 5
    assert links.admits(B, "control", 6, 1)
    assert not links.admits(B, "control", 4, 99)
    links.accept(B, "control", 6, 1)
    assert links.counts(B, "control", 6, 1)
    assert not links.counts(B, "control", 9, 1)
    assert not links.admits(B, "control", 6, 1)


def test_a_boot_that_answered_ends_the_connections_of_those_before() -> None:
    links = known()
    links.meet(B, 6)
    assert not links.counts(B, "control", 5, 8)
    links.meet(B, 5)
    assert links.boot_of(B) == 6
    assert links.boot_of(C) == 0


calls = st.lists(
    st.tuples(st.sampled_from([CONTROL, DATA]), st.integers(1, 3), st.integers(1, 4)), max_size=30
)


@pytest.mark.slow
@given(calls)
def test_only_the_newest_counts_whatever_comes(made: list[tuple[Channel, int, int]]) -> None:
    links, accepted = Links(), list[tuple[Channel, int, int]]()
    for channel, boot, number in made:
        # The twin remembers all that were accepted, and looks at each of them.
        newest_boot = max((known_boot for _, known_boot, _ in accepted), default=0)
        numbers = [n for c, b, n in accepted if (c, b) == (channel, boot)]
        admitted = boot >= newest_boot and all(number > one for one in numbers)
        assert links.admits(B, channel, boot, number) == admitted
        if admitted:
            links.accept(B, channel, boot, number)
            accepted.append((channel, boot, number))
        for c, b, n in accepted:
            newest = b == max(row[1] for row in accepted) and n == max(
                row[2] for row in accepted if row[:2] == (c, b)
            )
            assert links.counts(B, c, b, n) == newest
