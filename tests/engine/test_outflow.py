"""What one member sends the others while connections are full, broken, and made anew."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tidelog.affinity.topology import Incarnation
from tidelog.engine.net.frames import Message
from tidelog.engine.node.outflow import KEPT_BYTES_MAX, KEPT_MAX, MESSAGE_BYTES, Outflow
from tidelog.engine.replication.stream import replicated_of
from tidelog.engine.replication.streams import Kept, Streams
from tidelog.wal.records import CommitUptoRecord, Upto

BOB, CID = (Incarnation(UUID(int=number), 1) for number in (2, 3))
A, B, C, D = ([80, number, [], [], []] for number in range(4))


class Lines:
    """Connections that take so many messages each."""

    def __init__(self, room: int = 100) -> None:
        self.room = dict.fromkeys((BOB.member.bytes, CID.member.bytes), room)
        self.sent: list[tuple[bytes, Message]] = []
        self.tries = 0
        self.hung_up: list[bytes] = []
        self.down = False

    def send(self, member: bytes, _channel: str, message: Message) -> Any:
        self.tries += 1
        if self.down:
            return "down"
        if not self.room[member]:
            return "full"
        self.room[member] -= 1
        self.sent.append((member, message))
        return "queued"

    def hang_up(self, member: bytes, _channel: str, reason: Exception) -> None:
        assert "takes too little" in str(reason)
        self.hung_up.append(member)

    def to(self, copy: Incarnation) -> list[Any]:
        """Return what went to a member since the last call: words, or the numbers of items."""
        sent, self.sent = self.sent, []
        return [
            message if message[0] == 80 else [item.number for item in replicated_of(message)]
            for member, message in sent
            if member == copy.member.bytes
        ]


def around(room: int = 100) -> tuple[Outflow, Lines, Streams]:
    lines, streams = Lines(room), Streams()
    return Outflow(lines, streams), lines, streams


def add(streams: Streams, size: int = 100) -> None:
    record = CommitUptoRecord(rows=(Upto(0, 1, 1),))
    streams.add(0, Kept(record, 0, 0, size, None), 0.0)


def test_words_go_in_order_and_wait_for_room() -> None:
    out, lines, _ = around(room=1)
    for message in (A, B, C, D):
        out.tell(BOB.member, message)
    assert lines.to(BOB) == [A]
    assert lines.tries == 2, "a connection that is full is not tried"
    lines.room[BOB.member.bytes] = 1
    out.has_room(BOB.member)
    assert lines.to(BOB) == [B]
    out.tell(BOB.member, A)
    lines.room[BOB.member.bytes] = 100
    out.tell(CID.member, B)
    assert lines.to(CID) == [B], "another one has room"
    out.has_room(BOB.member)
    assert lines.to(BOB) == [C, D, A]
    out.tell(BOB.member, B)
    assert lines.to(BOB) == [B]


def test_items_go_behind_words_when_there_is_room_and_are_sent_once() -> None:
    out, lines, streams = around(room=0)
    streams.open(0, 1, [BOB], 0.0)
    out.pump()
    out.tell(BOB.member, A)
    add(streams)
    tries = lines.tries
    out.pump()
    assert lines.tries == tries, "a connection that is full is not tried"
    lines.room[BOB.member.bytes] = 100
    out.has_room(BOB.member)
    assert lines.to(BOB) == [A, [1, 2]]
    out.pump()
    assert lines.to(BOB) == []
    add(streams)
    out.pump()
    assert lines.to(BOB) == [[3]]


def test_a_new_connection_gets_no_old_words_and_all_items_that_are_not_stored() -> None:
    out, lines, streams = around()
    streams.open(0, 1, [BOB], 0.0)
    add(streams)
    out.pump()
    assert lines.to(BOB) == [[1, 2]]
    lines.room[BOB.member.bytes] = 0
    out.tell(BOB.member, A)
    lines.room[BOB.member.bytes] = 100
    out.connected(BOB.member)
    assert lines.to(BOB) == [[1, 2]]
    out.has_room(BOB.member)
    assert lines.to(BOB) == [], "whoever gave a word gives it again"


def test_what_a_new_connection_begins_with_goes_before_all_items() -> None:
    out, lines, streams = around()
    streams.open(0, 1, [BOB, CID], 0.0)
    add(streams)
    out.pump()
    lines.sent.clear()
    out.connected(BOB.member, [A, B])
    assert lines.to(BOB) == [A, B, [1, 2]]
    assert lines.to(CID) == []


def test_items_wait_until_there_is_room_behind_what_a_new_connection_begins_with() -> None:
    out, lines, streams = around(room=0)
    streams.open(0, 1, [BOB], 0.0)
    out.tell(BOB.member, D)
    lines.room[BOB.member.bytes] = 1
    tries = lines.tries
    out.connected(BOB.member, [A, B, C])
    assert lines.to(BOB) == [A]
    assert lines.tries == tries + 2, "a connection that is full is not tried"
    lines.room[BOB.member.bytes] = 100
    out.has_room(BOB.member)
    assert lines.to(BOB) == [B, C, [1]]


def test_items_go_in_messages_of_a_bounded_size() -> None:
    out, lines, streams = around()
    streams.open(0, 1, [BOB], 0.0)
    for _ in range(4):
        add(streams, MESSAGE_BYTES // 2)
    out.pump()
    assert lines.to(BOB) == [[1, 2], [3, 4], [5]]


def test_a_connection_is_hung_up_rather_than_that_one_word_is_left_out() -> None:
    out, lines, streams = around(room=0)
    streams.open(0, 1, [BOB], 0.0)
    for _ in range(KEPT_MAX):
        out.tell(BOB.member, A)
    assert lines.hung_up == []
    out.tell(BOB.member, B)
    assert lines.hung_up == [BOB.member.bytes]
    assert repr(out) == "<Outflow, 0 messages wait for room>"
    for _ in range(KEPT_MAX + 1):
        out.tell(BOB.member, A)
    assert repr(out) == "<Outflow, 0 messages wait for room>", "nothing waits for what is hung up"
    lines.room[BOB.member.bytes] = 100
    out.connected(BOB.member, [C])
    out.tell(BOB.member, D)
    assert lines.to(BOB) == [C, [1], D]
    assert len(lines.hung_up) == 1


def test_words_that_wait_are_limited_by_their_bytes_and_those_that_went_do_not_count() -> None:
    out, lines, _ = around(room=0)
    word = [80, 0, [b"v" * (KEPT_BYTES_MAX // 4 - 1000)], [], []]
    for _ in range(4):
        out.tell(BOB.member, word)
    lines.room[BOB.member.bytes] = 3
    out.has_room(BOB.member)
    assert len(lines.to(BOB)) == 3
    for _ in range(3):
        out.tell(BOB.member, word)
    assert lines.hung_up == []
    out.tell(BOB.member, word)
    assert lines.hung_up == [BOB.member.bytes]


def test_nothing_waits_for_a_member_without_a_connection() -> None:
    out, lines, _ = around()
    lines.down = True
    out.tell(BOB.member, A)
    out.tell(BOB.member, B)
    assert lines.tries == 1
    assert repr(out) == "<Outflow, 0 messages wait for room>"
    lines.down = False
    out.connected(BOB.member)
    out.tell(BOB.member, C)
    assert lines.to(BOB) == [C]


def test_nothing_waits_behind_a_connection_that_breaks_while_it_is_caught_up_with() -> None:
    out, lines, _ = around(room=0)
    out.tell(BOB.member, A)
    out.tell(BOB.member, B)
    lines.down = True
    out.has_room(BOB.member)
    assert repr(out) == "<Outflow, 0 messages wait for room>"
    lines.down, lines.room[BOB.member.bytes] = False, 100
    out.has_room(BOB.member)
    assert lines.to(BOB) == []
