"""The kinds of the wire: their numbers never change, and what arrives is one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from support.messages import example_of, messages_of
from tidelog.engine.net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from tidelog.engine.net.kinds import (
    BY_NAME,
    BY_NUMBER,
    CLIENT,
    CONTROL,
    DATA,
    EVERY,
    KINDS,
    Channel,
    MessageKind,
    checked_message,
)

GOLDEN = Path(__file__).parent / "golden_kinds.txt"

ALL_KINDS = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def channel_of(kind: MessageKind) -> Channel:
    return CONTROL if kind.channel == EVERY else kind.channel


def line_of(kind: MessageKind) -> str:
    """Number, name, class of connection and fields of a kind, and the bytes of a message of it."""
    fields = " ".join(f"{field.name}:{field.type_name}" for field in kind.fields)
    data = pack_message(example_of(kind)).hex()
    return f"{kind.number} {kind.name} {kind.channel}: {fields} = {data}"


def test_no_kind_has_changed() -> None:
    # A new kind is a new line, under a number that none ever had.  No line that is there may ever
    # be another one, except that fields are appended.
    assert "\n".join(map(line_of, KINDS)) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_numbers_and_names_are_given_once_and_fit_one_byte() -> None:
    assert len(BY_NUMBER) == len(BY_NAME) == len(KINDS)
    assert sorted(BY_NUMBER) == list(BY_NUMBER)
    assert max(BY_NUMBER) < 128


def arrived(message: Message) -> Message:
    """A message behind its way over the wire."""
    [found] = FrameDecoder(KNOWN).feed(frame([pack_message(message)]))
    return found


@ALL_KINDS
def test_every_kind_arrives_as_it_was_sent(kind: MessageKind) -> None:
    message = example_of(kind)
    assert checked_message(arrived(message), channel_of(kind)) == message


@pytest.mark.slow
@given(st.data())
def test_any_message_of_any_kind_arrives_as_it_was_sent(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    message = data.draw(messages_of(kind))
    assert checked_message(arrived(message), channel_of(kind)) == message


@ALL_KINDS
def test_fields_that_a_later_version_appends_are_cut_off(kind: MessageKind) -> None:
    message = example_of(kind)
    assert checked_message([*message, 1, b"new"], channel_of(kind)) == message


@ALL_KINDS
def test_a_message_with_fewer_fields_is_refused(kind: MessageKind) -> None:
    count = len(kind.fields)
    with pytest.raises(FrameError, match=f"^{kind.name} has {count - 1} fields, not {count}$"):
        checked_message(example_of(kind)[:-1], channel_of(kind))


@ALL_KINDS
def test_a_field_of_another_type_is_refused_by_name(kind: MessageKind) -> None:
    for at, field in enumerate(kind.fields, 1):
        message = example_of(kind)
        message[at] = object()
        with pytest.raises(FrameError, match=f"^{kind.name}: {field.name} has to be "):
            checked_message(message, channel_of(kind))


@ALL_KINDS
def test_an_item_of_another_type_is_refused_in_every_column(kind: MessageKind) -> None:
    for at, field in enumerate(kind.fields, 1):
        message = example_of(kind)
        if field.items is not None:
            message[at] = [*message[at], object()]
            with pytest.raises(FrameError, match=f"^{kind.name}: {field.name} has to be "):
                checked_message(message, channel_of(kind))


@pytest.mark.parametrize(
    ("message", "channel", "text"),
    [
        ([], CONTROL, "a message of the kind NoneType, which is not known here"),
        ([9], CONTROL, "a message of the kind 9, which is not known here"),
        ([True, 0], CONTROL, "a message of the kind bool, which is not known here"),
        ([[1], 0], CONTROL, "a message of the kind list of int, which is not known here"),
        ([15, 1, 2], DATA, "ping on a data connection; it belongs to control"),
        ([50], CLIENT, "prepare on a client connection; it belongs to data"),
        ([13, [1, b""], True, []], CONTROL, "accepted: index has to be int, not bool"),
        ([71, [1], [1], [1, "x", b"y"], [1]], DATA,
         "stored: epochs has to be int*, not list of bytes and int and str"),
        ([102, 1, "soon", "get", []], CLIENT, "request: left_us has to be int?, not str"),
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_right_is_refused(
    message: Message, channel: Channel, text: str
) -> None:
    with pytest.raises(FrameError) as caught:
        checked_message(message, channel)
    assert str(caught.value) == text


def test_a_field_that_may_be_nothing_may_be() -> None:
    assert checked_message([102, 1, None, "get", []], CLIENT)[2] is None


def test_a_message_is_made_with_all_its_fields() -> None:
    assert BY_NAME["accepted"].message([1, b""], 7, []) == [13, [1, b""], 7, []]
    with pytest.raises(TypeError, match=r"^accepted has 3 fields, not 1$"):
        BY_NAME["accepted"].message(7)
