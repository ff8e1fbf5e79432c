"""Frames: what was packed arrives however it is cut, and nothing else does."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import msgpack
import pytest
from hypothesis import given, strategies as st

from support.messages import values
from tidelog.engine.net import frames
from tidelog.engine.net.frames import (
    KNOWN,
    LENGTH_BYTES,
    QUICK_ITEMS,
    SENDABLE,
    SMALL_BYTES,
    STRANGER,
    FrameDecoder,
    FrameError,
    FrameLimits,
    Message,
    frame,
    pack_message,
    small_frame,
)
from tidelog.errors import UsageError

LIMITS = FrameLimits(bytes_max=1000, depth_max=3, items_max=20)
batches = st.lists(st.lists(st.lists(values, max_size=5), min_size=1, max_size=3), max_size=4)


def framed(*messages: Message) -> bytes:
    return frame([pack_message(message) for message in messages])


def with_length(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def refused(data: bytes, limits: FrameLimits = LIMITS) -> str:
    with pytest.raises(FrameError) as caught:
        FrameDecoder(limits).feed(data)
    return str(caught.value)


def test_a_frame_is_a_length_and_an_array_of_messages() -> None:
    assert framed([15, 1, b"a"], [16]) == b"\x00\x00\x00\x09" + b"\x92\x93\x0f\x01\xc4\x01a\x91\x10"


@pytest.mark.slow
@given(batches, st.lists(st.integers(min_value=1, max_value=30), max_size=50))
def test_messages_arrive_whole_wherever_the_bytes_are_cut(
    sent: list[list[Message]], sizes: list[int]
) -> None:
    data = b"".join(framed(*batch) for batch in sent)
    decoder = FrameDecoder(KNOWN)
    arrived = []
    for size in sizes:
        arrived += decoder.feed(data[:size])
        data = data[size:]
    arrived += decoder.feed(data)
    assert arrived == [message for batch in sent for message in batch]
    assert decoder.missing == 4


@pytest.mark.slow
@given(batches)
def test_who_receives_what_is_missing_takes_nothing_of_the_next_frame(
    sent: list[list[Message]],
) -> None:
    data = b"".join(framed(*batch) for batch in sent)
    for batch in sent:
        decoder = FrameDecoder(KNOWN)
        arrived: list[Message] = []
        while not arrived:
            size = decoder.missing
            arrived = decoder.feed(data[:size])
            data = data[size:]
        assert arrived == batch
    assert data == b""


@pytest.mark.slow
@given(st.binary(max_size=200))
def test_random_bytes_are_messages_or_one_error(data: bytes) -> None:
    for bytes_sent in (data, with_length(data)):
        with suppress(FrameError):
            for message in FrameDecoder(LIMITS).feed(bytes_sent):
                assert type(message) is list


@pytest.mark.slow
@given(st.data())
def test_a_frame_that_was_damaged_is_messages_or_one_error(data: st.DataObject) -> None:
    bytes_sent = bytearray(framed([72, [1, 2], {"a": [b"x", 1.5]}, "text", None, True]))
    at = data.draw(st.integers(min_value=0, max_value=len(bytes_sent) - 1))
    bytes_sent[at] = data.draw(st.integers(min_value=0, max_value=255))
    with suppress(FrameError):
        assert all(
            type(message) is list for message in FrameDecoder(LIMITS).feed(bytes(bytes_sent))
        )


def test_a_frame_that_is_too_long_is_refused_by_its_length() -> None:
    assert FrameDecoder(LIMITS).feed((1000).to_bytes(4, "big")) == []
    assert refused((1001).to_bytes(4, "big")) == "a frame of 1,001 bytes; the limit is 1,000"


def test_other_protocols_are_refused_by_their_first_bytes() -> None:
    for hello in (
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-x\r\n",
        b"\x16\x03\x01\x02\x00",
        b"*1\r\n$4\r\n",
    ):
        assert "the limit is 4,096" in refused(hello, STRANGER)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ([[[[1]]]], "arrays or maps lie more than 3 deep in one another"),
        ([{"a": [{"b": []}]}], "arrays or maps lie more than 3 deep in one another"),
        ([0] * 21, "ValueError 21 exceeds max_array_len(20)"),
        ([[0] * 9, [0] * 9], "a frame of more than 20 items"),
        ([{str(key): 0 for key in range(10)}], "a frame of more than 20 items"),
        ([msgpack.ExtType(5, b"")], "a frame with an extension of msgpack"),
        ([msgpack.ExtType(5, b"x")], "exceeds max_ext_len(0)"),
        ([msgpack.Timestamp(1)], "exceeds max_ext_len(0)"),
        ([{1: 2}], "int is not allowed for map key"),
    ],
)
def test_what_is_over_a_limit_is_refused(message: Message, text: str) -> None:
    assert text in refused(framed(message))


def test_what_is_at_the_limits_arrives() -> None:
    messages: list[Message] = [[[[1]], {"a": {}}], [0] * 12]
    assert FrameDecoder(LIMITS).feed(framed(*messages)) == messages


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "OutOfData"),
        (b"\x92\x91\x01", "OutOfData"),
        (b"\x91\x91\x01\x01", "ends behind its messages"),
        (b"\x01", "is not an array of messages"),
        (b"\x90", "is not an array of messages"),
        (b"\x91\x01", "is not an array of messages"),
        (b"\x91\xc1", "FormatError"),
        (b"\x91\x91\xa1\xff", "UnicodeDecodeError"),
        (b"\x91" * 999 + b"\xc0", "arrays or maps lie more than 3 deep"),
        (b"\x91" * 5000 + b"\xc0", "StackError"),
        (b"\x91\x91\xc7\x00\xff", "invalid timestamp"),
    ],
)
def test_a_body_that_is_not_messages_is_refused(body: bytes, text: str) -> None:
    limits = FrameLimits(bytes_max=6000, depth_max=3, items_max=2000)
    assert text in refused(with_length(body), limits)


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\x00\x0f\xff\xff" * 1000,  # arrays of a million in one another, with nothing in them
        b"\xdf\x00\x0f\xff\xff\xa1a" * 500,
        b"\x91\xdd\x00\x08\x00\x00" + b"\x90" * (1 << 19),  # half a million empty arrays
    ],
)
def test_a_frame_that_claims_more_than_it_holds_costs_no_memory(body: bytes) -> None:
    data = with_length(body)
    tracemalloc.start()
    try:
        refused(data, FrameLimits(bytes_max=1 << 20, depth_max=12, items_max=10_000))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body) + 100 * 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [QUICK_ITEMS, QUICK_ITEMS + 1, 50_000])
def test_arrays_in_one_another_that_claim_many_items_cost_little_memory(count: int) -> None:
    body = (b"\xdc" + count.to_bytes(2, "big")) * 100_000
    data = with_length(body)
    tracemalloc.start()
    try:
        refused(data, KNOWN)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body) + (9 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [QUICK_ITEMS - 1, QUICK_ITEMS, QUICK_ITEMS + 1])
def test_arrays_arrive_whether_they_are_made_at_once_or_gone_over_first(count: int) -> None:
    message = [71, count * [1], dict.fromkeys(map(str, range(count)), 2)]
    assert FrameDecoder(KNOWN).feed(framed(message)) == [message]


def test_a_large_frame_may_have_many_small_messages() -> None:
    messages: list[Message] = [[71, bytes(2 << 20)], *([1, number] for number in range(600))]
    assert FrameDecoder(KNOWN).feed(framed(*messages)) == messages


@pytest.mark.slow
def test_a_message_of_bytes_may_be_as_long_as_is_sendable_and_no_longer() -> None:
    around = len(pack_message([71, bytes(1 << 20)])) - (1 << 20)
    most = SENDABLE.bytes_max - around
    assert len(pack_message([71, bytes(most)])) == SENDABLE.bytes_max
    with pytest.raises(UsageError):
        pack_message([71, bytes(most + 1)])


def test_a_large_message_of_bytes_is_not_made_anew_to_see_whether_it_may_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(frames, "FrameDecoder")
    for large in ([71, bytes(63 << 20)], [71, bytes(1 << 20), bytes(1 << 20), [1] * 1000]):
        pack_message(large)
    with pytest.raises(NameError):
        pack_message([71, b"", [0] * (1 << 20)])


def test_limits_are_raised_between_frames() -> None:
    decoder = FrameDecoder(STRANGER)
    decoder.feed(framed([1]))
    decoder.limits = KNOWN
    assert decoder.feed(framed([2, b"x" * 5000])) == [[2, b"x" * 5000]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "text"),
    [
        ([71, bytes(64 << 20)], r"a frame of 67,108,8\d\d bytes; the limit is 67,108,800"),
        ([71, [0] * (1 << 20)], "exceeds max_array_len"),
        ([71, [[0]] * (1 << 19)], "a frame of more than 1,048,512 items"),
    ],
)
def test_a_message_that_would_be_refused_for_its_size_is_not_packed(
    message: Message, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        pack_message(message)


@pytest.mark.slow
def test_the_largest_messages_are_packed_and_arrive() -> None:
    for message in ([71, bytes(63 << 20)], [71, [0] * ((1 << 20) - 100)]):
        assert FrameDecoder(KNOWN).feed(framed(message)) == [message]


def test_the_messages_of_a_small_frame_are_the_same_as_for_a_decoder() -> None:
    messages: list[Message] = [[103, 1, None], [103, 2, {"a": [b"x", 1.5]}], [], [1] * 20]
    for some in (*([one] for one in messages), messages, messages * 5):
        data = framed(*some)
        assert small_frame(data) == some == FrameDecoder(KNOWN).feed(data)


def test_what_is_not_one_small_whole_frame_is_left_to_the_decoder() -> None:
    packed = pack_message([103, 1, b"x"])
    whole = frame([packed])
    extension = frame([pack_message([1])])[:-1] + b"\xd4\x00\x00"
    extension = (len(extension) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big") + extension[4:]
    not_lists = [with_length(body) for body in (b"\x91\x07", b"\x92\x91\x07\x07", b"\x90", b"\x07")]
    for data in (
        b"", whole[:3], whole[:-1], whole + b"\0", whole + whole,
        frame([pack_message([103, 1, b"x" * SMALL_BYTES])]), extension, *not_lists,
        b"\0\0\0\1\x91", b"\0\0\0\7\x91\xdd\xff\xff\xff\xff\xc0",
    ):  # fmt: skip
        assert small_frame(data) is None
