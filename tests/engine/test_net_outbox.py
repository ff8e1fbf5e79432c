"""What waits for a connection, and how often the log is told about peers."""

from __future__ import annotations

from tidelog.engine.net.complaints import PERIOD_S, Complaints
from tidelog.engine.net.frames import KNOWN, LENGTH_BYTES, FrameDecoder, Message, pack_message
from tidelog.engine.net.outbox import FLOODED, FRAME_BYTES, Outbox


def messages_in(frame: bytes) -> list[Message]:
    return FrameDecoder(KNOWN).feed(frame)


def test_all_that_waits_leaves_in_one_frame_in_order() -> None:
    outbox = Outbox(1000)
    for number in range(3):
        outbox.put(pack_message([15, number]))
    assert outbox.bytes == 9
    assert messages_in(outbox.take(pack_message([3, 7]))) == [[3, 7], [15, 0], [15, 1], [15, 2]]
    assert outbox.bytes == 0
    assert not outbox


def test_a_frame_ends_before_it_is_too_long() -> None:
    outbox = Outbox(1000)
    sizes = [FRAME_BYTES // 2 - 10, FRAME_BYTES // 2 - 10, 100, FRAME_BYTES * 2, 100]
    for number, size in enumerate(sizes):
        outbox.put(pack_message([number, bytes(size)]))
    taken = []
    while outbox:
        taken.append([message[0] for message in messages_in(outbox.take())])
    assert taken == [[0, 1], [2], [3], [4]]


def test_messages_of_any_number_of_items_fit_their_frame() -> None:
    outbox = Outbox(1000)
    message: Message = [0] * 1000
    for _ in range(FRAME_BYTES // 1000 + 1):
        outbox.put(pack_message(message))
    first = outbox.take(pack_message([3, 7]))
    assert len(first) <= FRAME_BYTES + LENGTH_BYTES + 16
    assert len(messages_in(first)) + len(messages_in(outbox.take())) == FRAME_BYTES // 1000 + 2


def test_an_outbox_is_full_flooded_and_roomy_again() -> None:
    outbox = Outbox(1000)
    seen = []
    for _ in range(4 * FLOODED):
        seen.append((outbox.roomy, outbox.full, outbox.flooded))
        outbox.put(bytes(250))
    assert seen[:3] == [(True, False, False)] * 3
    assert seen[3:4] == [(False, False, False)]
    assert set(seen[4:]) == {(False, True, False)}
    assert outbox.flooded
    outbox.take()
    assert outbox.roomy


def test_what_was_not_sent_of_a_frame_is_taken_next_and_counts() -> None:
    outbox = Outbox(1000)
    outbox.put(pack_message([15, 0]))
    whole = outbox.take()
    assert not outbox.is_begun
    outbox.put_back(whole[2:])
    outbox.put(pack_message([15, 1]))
    assert (outbox.is_begun, bool(outbox), outbox.bytes) == (True, True, len(whole) - 2 + 3)
    assert whole[:2] + outbox.take(pack_message([3, 7])) == whole
    assert (outbox.is_begun, outbox.bytes) == (False, 3)
    assert messages_in(outbox.take()) == [[15, 1]]
    assert (bool(outbox), outbox.bytes) == (False, 0)
    outbox.put_back(b"e")
    assert (outbox.is_begun, outbox.bytes, outbox.take(pack_message([3, 7]))) == (True, 1, b"e")


def test_what_is_dropped_is_not_taken_and_does_not_count() -> None:
    outbox = Outbox(10)
    outbox.put(b"a message that waits")
    outbox.put_back(b"the rest of another")
    assert outbox.full
    outbox.clear()
    assert (bool(outbox), outbox.is_begun, outbox.bytes) == (False, False, 0)


def test_the_log_is_told_once_per_period_and_topic() -> None:
    complaints = Complaints()
    assert complaints.line("silent", "it is silent", 0.1) == "it is silent"
    for moment in range(999):
        assert complaints.line("silent", "it is silent", 0.1 + moment / 1000) is None
    assert complaints.line("frame", "it is too long", 0.2) == "it is too long"
    later = 0.1 + PERIOD_S
    wanted = "it is silent; 999 more since the last such line"
    assert complaints.line("silent", "it is silent", later) == wanted
    assert complaints.line("silent", "it is silent", later + PERIOD_S) == "it is silent"
